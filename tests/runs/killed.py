"""``ucfl`` in a process that kills itself, with SIGKILL, at a chosen moment of its life.

usage: killed.py MOMENT NUMBER ARGUMENTS… where MOMENT is one of

- ``trained``: after the rounds' training, before anything of the round is evaluated or kept,
- ``writing``: when a file has been written beside its place,
- ``written``: when it has just been moved there.
"""

import os
import signal
import sys
from pathlib import Path

from ucfl.algorithms.fedavg import FedAvg
from ucfl.cli import main

moment, number = sys.argv[1], int(sys.argv[2])
sys.argv = ["ucfl", *sys.argv[3:]]
seen = 0


def reached(name):
    global seen
    seen += name == moment
    if name == moment and seen == number:
        os.kill(os.getpid(), signal.SIGKILL)


def watched(owner, method, before=None, after=None):
    original = getattr(owner, method)

    def call(*args, **kwargs):
        if before:
            reached(before)
        result = original(*args, **kwargs)
        if after:
            reached(after)
        return result

    setattr(owner, method, call)


watched(FedAvg, "round", after="trained")
watched(Path, "replace", before="writing", after="written")
main()
