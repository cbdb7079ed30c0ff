"""Following a run that another process trains, by what appears in its folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ucfl.errors import UcflError
from ucfl.runs import Progress, Run
from ucfl.runs.folder import CHECKPOINT, HISTORY, runs_in
from ucfl.runs.lock import owner
from ucfl.words import counted


def follow(folder: Path, pause: float = 1.0) -> Iterator[Progress]:
    """Every round of the run as it appears on disk, until the last; looks each ``pause`` seconds.

    Runs are stored every few seconds (``--checkpoint-seconds``), so rounds come in bunches. A run
    that nobody trains, since it was stopped, ends in an error that says so.
    """
    found = runs_in(folder)
    if len(found) > 1:
        raise UcflError(f"{folder} holds {len(found)} runs; watch one, such as {found[0].folder}.")
    place, told = found[0].folder, 0
    while True:
        trained_by = owner(place)  # first: what it has stored when it is gone is seen below
        run = Run.open(place)  # anew: the history is another one each time
        rounds = run.scenario.rounds
        if (place / HISTORY).exists():
            test = run.split("test")
            for t in range(told + 1, len(test)):
                yield Progress.at(run.algorithm.label, t, rounds, test[t], run.measure)
            told = len(test) - 1
            if told >= rounds:
                return
        if not trained_by and (place / CHECKPOINT).exists() and run.stopped_early:
            return
        if not trained_by:
            raise UcflError(
                f"nobody trains {place}, which has {told} of {counted(rounds, 'round')}; go on "
                "with --resume."
            )
        time.sleep(pause)
