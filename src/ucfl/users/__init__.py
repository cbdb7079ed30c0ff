"""Where users and their data come from."""

from ucfl.users.population import SPLITS, Examples, Split, Users
from ucfl.users.scenarios import SCENARIOS, Scenario, find

__all__ = ["SCENARIOS", "SPLITS", "Examples", "Scenario", "Split", "Users", "find"]
