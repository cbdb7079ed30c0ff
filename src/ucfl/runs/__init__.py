"""The round loop, history, checkpoints, comparisons."""

from ucfl.runs.compare import Comparison, compare
from ucfl.runs.folder import Run
from ucfl.runs.loop import Progress, Stopped, federation, run

__all__ = ["Comparison", "Progress", "Run", "Stopped", "compare", "federation", "run"]
