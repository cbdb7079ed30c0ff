"""The round loop, history, checkpoints, comparisons, and what runs cost on air."""

from ucfl.runs.building import federation
from ucfl.runs.compare import Comparison, compare
from ucfl.runs.folder import Run, find_runs
from ucfl.runs.loop import Progress, Stopped, run
from ucfl.runs.planning import Question
from ucfl.runs.timing import Curve, curve, time_to

__all__ = [
    "Comparison",
    "Curve",
    "Progress",
    "Question",
    "Run",
    "Stopped",
    "compare",
    "curve",
    "federation",
    "find_runs",
    "run",
    "time_to",
]
