"""``ucfl`` commands, one after another in one process, on a machine that is not as one would wish.

usage: commands.py FILE, whose JSON object has

- ``uid`` (optional): whose process it is, from when all is imported;
- ``steps``: each with ``arguments``, and optionally ``full`` = [first, last], the rounds in which
  the disk is full (round 0 is all before the first), ``filler``, a file that fills the disk (else
  no file may grow at all), and ``interrupt``, the round in which Ctrl-C comes.

Prints an object per step: ``code``, ``out``, ``err``.
"""

import contextlib
import encodings.cp437  # noqa: F401 (of zip files)
import importlib.readers  # noqa: F401
import io
import json
import os
import resource
import sys
from pathlib import Path

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_pdf  # noqa: F401 (what a step would import as somebody else)
import pandas  # noqa: F401
import sklearn.cluster  # noqa: F401

import ucfl.report.figures  # noqa: F401
from ucfl.algorithms.fedavg import FedAvg
from ucfl.cli import main

UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


def fill(step):
    """No space from now on."""
    if "filler" not in step:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, UNLIMITED[1]))
        return
    with contextlib.suppress(OSError), Path(step["filler"]).open("ab", buffering=0) as file:
        while file.write(bytes(1024)):
            pass


def free(step):
    if "filler" not in step:
        resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    else:
        Path(step["filler"]).unlink(missing_ok=True)


def at_round(step, t):
    first, last = step.get("full", (-1, -1))
    if t == first:
        fill(step)
    if t == last + 1:
        free(step)
    if t == step.get("interrupt"):
        raise KeyboardInterrupt


def run(step):
    sys.argv = ["ucfl", *step["arguments"]]
    out, err, code = io.StringIO(), io.StringIO(), 0
    train = FedAvg.round

    def watched(self, fed, state, t):
        at_round(step, t)
        return train(self, fed, state, t)

    FedAvg.round = watched
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            at_round(step, 0)
            main()
        except SystemExit as stop:
            code = stop.code
        finally:
            FedAvg.round = train
            free(step)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    wanted = json.loads(Path(sys.argv[1]).read_text())
    if "uid" in wanted:
        os.setgroups([])
        os.setgid(wanted["uid"])
        os.setuid(wanted["uid"])
    for each in wanted["steps"]:
        print(json.dumps(run(each)), flush=True)
