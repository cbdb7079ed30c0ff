"""Where users and their data come from."""

from ucfl.users.population import SPLITS, Examples, Split, Users
from ucfl.users.scenario import Scenario
from ucfl.users.scenarios import SCENARIOS, find

__all__ = ["SCENARIOS", "SPLITS", "Examples", "Scenario", "Split", "Users", "find"]
