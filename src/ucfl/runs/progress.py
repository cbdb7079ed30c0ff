"""Where a run stands, told after every round; in a notebook, as one line that is written over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import ArrayLike

from ucfl.measure import ACCURACY, Measure


@dataclass(frozen=True)
class Progress:
    """Where a run stands, told after every round."""

    label: str
    round: int
    rounds: int
    mean: float
    worst: float
    measure: Measure = ACCURACY

    @classmethod
    def at(cls, label: str, t: int, rounds: int, test: ArrayLike, measure: Measure) -> Progress:
        """After round t, in which users have these test values [users]."""
        return cls(label, t, rounds, measure.mean(test), measure.worst(test), measure)


OnRound = Callable[[Progress], None]

#: Between two looks of a notebook's line: it travels to the browser each time.
SECONDS = 0.2


def shown_in_notebook(on_round: OnRound | None) -> OnRound | None:
    """What is told after a round: what was asked for, or a line where people watch a notebook."""
    return _line() if on_round is None and in_notebook() else on_round


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook; IPython in a terminal has none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _line() -> OnRound:
    """One line per run, written over by a carriage return, which every notebook understands."""
    last, width = 0.0, 0

    def show(progress: Progress) -> None:
        nonlocal last, width
        ends = progress.round == progress.rounds
        if not ends and time.monotonic() - last < SECONDS:
            return
        mean, worst = (progress.measure.text(v) for v in (progress.mean, progress.worst))
        text = (
            f"{progress.label}: round {progress.round}/{progress.rounds}, "
            f"mean {mean}, worst {worst}"
        )
        print("\r" + text.ljust(width), end="\n" if ends else "", flush=True)
        last, width = time.monotonic(), 0 if ends else len(text)

    return show
