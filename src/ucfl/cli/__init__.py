"""The command line: parse, call, print. A file for each kind of command."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from ucfl import display, distributed, runs

# They add their commands to the app, in the order in which help lists them.
from ucfl.cli import deploying, listing, looking, planning, reproducing, training
from ucfl.cli.common import app, say
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs import stopping
from ucfl.runs.files import NotWritten
from ucfl.runs.provenance import on_command_line

__all__ = ["app", "deploying", "listing", "looking", "main", "planning", "reproducing", "training"]

#: Whether this process was told to stop at once.
_interrupted = False


def _stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, or a batch system's SIGTERM: a run stops after its round, all else at once.

    So does a run when it is asked again, unless processes share it: torchrun asks them, too.
    """
    global _interrupted
    again = stopping.asked()
    if not stopping.ask() or (again and not distributed.started_together()):
        _interrupted = True
        raise KeyboardInterrupt
    if not again and os.environ.get("RANK", "0") == "0":
        os.write(2, b"\nucfl: stopping after this round; once more stops at once.\n")


def main() -> None:
    """Run the command line; a person's mistake is one sentence and exit code 2."""
    global _interrupted
    _interrupted = False
    warnings.showwarning = lambda message, category, *_, **__: (
        say(f"note: {message}") if issubclass(category, UcflWarning) else None
    )
    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun, the first process speaks for all
        display.answers.quiet = display.notes.quiet = True
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)
    sys.unraisablehook = lambda dropped: None if _interrupted else sys.__unraisablehook__(dropped)
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)
    try:
        code = _command()
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, signal.SIG_IGN)
        with contextlib.suppress(UcflError):  # who is gone need not be waited for
            distributed.leave(failed=code != 0)
    except KeyboardInterrupt:  # once more, on the way out: there is nothing left to do
        os._exit(130)
    sys.exit(code)


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """An interrupt is one again where a library has made an error of its own of it.

    That a run's rounds could not be written must still be said.
    """
    try:
        yield
    except (runs.Stopped, NotWritten):
        raise
    except Exception as error:
        if _interrupted:
            raise KeyboardInterrupt from error
        raise


def _sentence(error: click.ClickException) -> str:
    """What click says, in our words for numbers; its advice once: click and typer both add it."""
    if isinstance(error, click.BadParameter) and (wanted := _number(error.param)):
        given = error.message.partition(" is not ")[0]
        return f"{error.param_hint or _name(error.param)} takes {wanted}, not {given}."
    said, asked, advice = error.format_message().rstrip(".").partition(" Did you mean ")
    if not asked:
        return f"{said}; see 'ucfl --help'."
    return f"{said.rstrip('.')}; did you mean {advice.partition('?')[0]}?"


def _name(param: click.Parameter | None) -> str:
    """An option as it is typed."""
    return param.opts[-1] if param is not None else "it"


def _number(param: click.Parameter | None) -> str:
    """What an option takes, in words; empty where that is no number."""
    kind: Any = None if param is None else param.type
    if not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return ""
    what = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is None:
        return what
    return f"{what} from {least:g} " + ("up" if most is None else f"to {most:g}")


def _command() -> int:
    """The exit code, with a word on what went wrong."""
    try:
        with _interrupts_kept(), on_command_line():
            return int(app(standalone_mode=False) or 0)  # a command's own exit code, if it has one
    except UcflError as error:
        say(str(error))
        return 2
    except click.ClickException as error:
        say(_sentence(error))
        return 2
    except runs.Stopped as stop:
        instead = " instead of --fresh" if "--fresh" in sys.argv else ""
        if stop.round:
            again = f"the same command with --resume{instead} goes on"
            say(f"stopped after round {stop.round}; {again}.")
        else:
            say("stopped before a round was done; the same command goes on.")
        return 130
    except (KeyboardInterrupt, click.Abort):
        say("stopped.")
        return 130
    except OSError as error:
        say(f"{error.filename or 'a file'}: {error.strerror or error}.")
        return 2
