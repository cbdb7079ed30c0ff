"""The round loop, history, checkpoints, comparisons, and what runs cost on air."""

from ucfl.runs.building import federation
from ucfl.runs.callbacks import Callback, RoundInfo, StopRun
from ucfl.runs.comparable import find_runs
from ucfl.runs.compare import Comparison, compare, traffic_to_json
from ucfl.runs.folder import Run
from ucfl.runs.loop import Stopped
from ucfl.runs.planning import Question
from ucfl.runs.progress import Progress
from ucfl.runs.record import Origin, Population, Record
from ucfl.runs.starting import run
from ucfl.runs.timing import Curve, curve, time_to

__all__ = [
    "Callback",
    "Comparison",
    "Curve",
    "Origin",
    "Population",
    "Progress",
    "Question",
    "Record",
    "RoundInfo",
    "Run",
    "StopRun",
    "Stopped",
    "compare",
    "curve",
    "federation",
    "find_runs",
    "run",
    "time_to",
    "traffic_to_json",
]
