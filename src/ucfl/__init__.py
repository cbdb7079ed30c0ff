"""User-centric federated learning: every user gets its own mixture of everyone's updates."""

from ucfl.errors import UcflError, UcflWarning
from ucfl.federation import Federation, LocalTraining, Metric, Objective
from ucfl.runs import RoundInfo, Run, StopRun, compare, run
from ucfl.users import Scenario, Users

__version__ = "0.2.0"

__all__ = [
    "Federation",
    "LocalTraining",
    "Metric",
    "Objective",
    "RoundInfo",
    "Run",
    "Scenario",
    "StopRun",
    "UcflError",
    "UcflWarning",
    "Users",
    "compare",
    "run",
]
