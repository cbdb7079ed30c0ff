"""The command line: parse, call, print. A file for each kind of command."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType

import click

from ucfl import display, distributed, runs

# They add their commands to the app, in the order in which help lists them.
from ucfl.cli import listing, looking, planning, reproducing, training
from ucfl.cli.common import app, say
from ucfl.errors import UcflError, UcflWarning

__all__ = ["app", "listing", "looking", "main", "planning", "reproducing", "training"]


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; a person's mistake is one sentence and exit code 2."""
    warnings.showwarning = lambda message, category, *_, **__: (
        say(f"note: {message}") if issubclass(category, UcflWarning) else None
    )
    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun, the first process speaks for all
        display.answers.quiet = display.notes.quiet = True
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)
    signal.signal(signal.SIGTERM, _terminate)  # as Ctrl-C: a batch system's stop loses no round
    try:
        code = app(standalone_mode=False) or 0  # commands return nothing
    except UcflError as error:
        say(str(error))
        code = 2
    except click.ClickException as error:
        say(f"{error.format_message().rstrip('.')}; see 'ucfl --help'.")
        code = 2
    except runs.Stopped as stop:
        say(f"stopped after round {stop.round}; the same command with --resume goes on.")
        code = 130
    except (KeyboardInterrupt, click.Abort):
        say("stopped.")
        code = 130
    except OSError as error:
        say(f"{error.filename or 'a file'}: {error.strerror or error}.")
        code = 2
    distributed.leave(failed=code != 0)
    sys.exit(code)
