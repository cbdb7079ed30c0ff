"""Where users and their data come from."""

from ucfl.users.form import IGNORED
from ucfl.users.given import ModelSource
from ucfl.users.newcomers import with_newcomers
from ucfl.users.participation import Participation
from ucfl.users.population import SPLITS, Examples, Split, Users
from ucfl.users.scenario import Scenario
from ucfl.users.scenarios import SCENARIOS, find

__all__ = [
    "IGNORED",
    "SCENARIOS",
    "SPLITS",
    "Examples",
    "ModelSource",
    "Participation",
    "Scenario",
    "Split",
    "Users",
    "find",
    "with_newcomers",
]
