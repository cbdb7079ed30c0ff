"""Federations whose users nobody made up: writers, roles of plays, people with a watch."""

from __future__ import annotations

from ucfl.algorithms import REGISTRY
from ucfl.paper.held_out import LEFT_OUT, TOLD, VARIANTS
from ucfl.users import SCENARIOS as SETTINGS
from ucfl.users import Scenario

SEEDS = (0, 1, 2, 3, 4)

#: The named scenarios, with newcomers where the data brings none of its own.
FEDERATIONS = {
    name: SETTINGS[name].change({"name": f"natural-{name}", **changes})
    for name, changes in {
        "mnist-writers": {},
        "shakespeare-roles": {},
        "shakespeare-transformer": {},
        "watch-people": {"newcomers": 0.2},
    }.items()
}
SCENARIOS = {scenario.name: scenario for scenario in FEDERATIONS.values()}
STAND_INS = {
    name: Scenario(
        name=f"embedded-{name}", points=320, users=8, model="mlp", lr=0.05, batch=10,
        rounds=2, newcomers=0.25,
    )
    for name in SCENARIOS
}  # fmt: skip
#: Its gate looks at inputs that are numbers, which tokens are not.
NEEDS_NUMBERS = ("fedmoe",)


def methods(scenario: Scenario) -> list[str]:
    """Every registered method that applies; nobody can tell the oracle groups."""
    left = (TOLD, *LEFT_OUT, *(NEEDS_NUMBERS if scenario.objective == "next-token" else ()))
    return [*(name for name in REGISTRY if name not in left), *VARIANTS]
