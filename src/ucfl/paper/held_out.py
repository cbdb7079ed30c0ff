"""The held-out set: federations and seeds that methods are judged on, and who runs on them.

Some federations were looked at with seeds 0 to 2 while methods were developed, the others not.
Reported are other seeds, and so other users, of both. (What was seen of them before the layered
method's last form is on its page: seed 10, and some of seed 11.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ucfl.algorithms import REGISTRY
from ucfl.users import SCENARIOS, Scenario

#: Seeds that were looked at during development, on the federations that say so.
DEVELOPMENT_SEEDS = (0, 1, 2)
#: Seeds that are reported: of the main methods, and of all others.
MAIN_SEEDS = (10, 11, 12, 13, 14)
OTHER_SEEDS = MAIN_SEEDS[:3]
#: Those of which nothing was seen before the layered method had its last form.
UNTOUCHED_SEEDS = MAIN_SEEDS[2:]

#: It is told the groups that others must find: shown beside them, never ranked among them.
TOLD = "oracle"
#: Those that the question is about.
MAIN = (TOLD, "fedavg", "local", "ditto", "cfl", "user-centric", "layered-user-centric")
#: Other settings of registered methods: streams that are chosen, and a rate with which the model
#: of Per-FedAvg learns something in 30 to 50 rounds (the publication's 0.001 needs hundreds).
VARIANTS = ("user-centric:streams=auto", "per-fedavg:beta=0.05")
#: The layered method with a part of it left out or told, and its measure alone: what each part is
#: worth. Not ranked: they are no methods of their own.
LAYERED = "layered-user-centric"
PROTOTYPES = "user-centric:likeness=prototypes"
PARTS = {
    f"{LAYERED}:prior=False": "no priors",
    f"{LAYERED}:body=all": "one body for all",
    f"{LAYERED}:body=groups": "bodies of groups",
    f"{LAYERED}:body=all:head=all": "no groups, priors alone",
    f"{LAYERED}:personal_model=never": "no own models",
    f"{LAYERED}:personal_model=always": "own models always",
    f"{LAYERED}:body=all:prior=False:personal_model=never:groups=told": "told groups, one body",
    f"{LAYERED}:groups=told": "told groups",
    PROTOTYPES: "the paper's method, by prototypes",
}
#: A round of the one trains every user's model everywhere; the other needs normalisation layers,
#: which the federations' models do not have.
LEFT_OUT = ("parallel-user-centric", "fedbn")


@dataclass(frozen=True)
class HeldOut:
    """A federation, and whether it was looked at during development.

    ``small`` are fields of its embedded stand-in, where the usual ones do not fit it.
    """

    scenario: Scenario
    developed: bool
    small: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stand_in(self) -> Scenario:
        """The same kind of users in small, on embedded images."""
        users = 2 * self.scenario.groups if self.scenario.groups > 1 else 8
        usual: dict[str, Any] = {
            "name": f"embedded-{self.scenario.name}",
            "dataset": "mnist5k",
            "users": users,
            "points": 40 * users,
            "model": "logistic",
            "lr": 0.05,
            "batch": 10,
            "rounds": 2,
        }
        return self.scenario.change({**usual, **self.small})


#: Half of everybody's data is held out: users' accuracies rest on tens of examples then. Sizes are
#: such that a run takes some 10 seconds on two CPU cores.
_HALF = {"held_out": 0.5}


def _emnist(name: str, description: str, **fields: Any) -> Scenario:
    usual = {"dataset": "emnist", "users": 40, "points": 10_000, "split": "dirichlet"}
    training = {"lr": 0.1, "batch": 32, "rounds": 50}
    return Scenario(name=name, description=description, **{**usual, **_HALF, **training, **fields})


def _cifar(name: str, description: str, **fields: Any) -> Scenario:
    usual = {"dataset": "cifar10", "points": 10_000, "lr": 0.03, "batch": 32, "rounds": 50}
    return Scenario(name=name, description=description, **{**usual, **_HALF, **fields})


def _mnist(name: str, description: str, **fields: Any) -> Scenario:
    usual = {"dataset": "mnist5k", "users": 20, "lr": 0.05, "batch": 10, "rounds": 30}
    return Scenario(name=name, description=description, **{**usual, **_HALF, **fields})


_BY_90 = {"groups": 4, "rotations": (0, 90, 180, 270)}
#: Natural users have no stand-in of their kind among embedded images.
_PEOPLE = {"split": "iid", "initialisation": None}

#: Looked at with :data:`DEVELOPMENT_SEEDS` during development.
DEVELOPED = (
    _emnist("emnist-rotations", "EMNIST, four rotations", alpha=8, **_BY_90),
    _emnist("emnist-labels", "EMNIST, each user its own mix of classes", alpha=0.4),
    _emnist(
        "emnist-permutations",
        "EMNIST, three permutations of the labels",
        users=30,
        alpha=1,
        groups=3,
        permute_labels=True,
    ),
    _cifar(
        "cifar-permutations",
        "CIFAR-10, four permutations of the labels",
        users=20,
        groups=4,
        permute_labels=True,
    ),
    _cifar(
        "cifar-rotations",
        "CIFAR-10, four rotations, unequal labels",
        users=40,
        split="dirichlet",
        alpha=0.5,
        **_BY_90,
    ),
    _mnist("mnist-rotations", "MNIST-5k, four rotations", **_BY_90),
    _mnist("mnist-iid", "MNIST-5k, all users alike"),
    SCENARIOS["mnist-writers"].change({"rounds": 15}),
    SCENARIOS["watch-people"].change({"rounds": 40}),
)
#: Not used in development.
UNSEEN = (
    _emnist(
        "emnist-six-rotations",
        "EMNIST, six rotations by 60 degrees",
        users=60,
        alpha=1,
        groups=6,
        rotations=(0, 60, 120, 180, 240, 300),
    ),
    _emnist(
        "emnist-rotations-few-labels",
        "EMNIST, four rotations, few classes a user",
        alpha=0.1,
        **_BY_90,
    ),
    _emnist(
        "emnist-both",
        "EMNIST, four groups by rotation and permutation of the labels",
        alpha=1,
        permute_labels=True,
        **_BY_90,
    ),
    _emnist(
        "emnist-conflicting",
        "EMNIST, four groups that disagree on every label",
        alpha=1,
        groups=4,
        permute_labels="conflicting",
    ),
    _emnist(
        "emnist-unequal-sizes",
        "EMNIST, four rotations, users of very unequal sizes",
        split="lognormal",
        sigma=1.0,
        **_BY_90,
    ),
    _mnist(
        "mnist-two-classes",
        "MNIST-5k, two classes a user",
        split="classes",
        classes_per_user=2,
    ),
    _mnist(
        "mnist-unequal-groups",
        "MNIST-5k, three rotations of 4, 8 and 16 users",
        users=28,
        groups=3,
        group_shares=(1, 2, 4),
        rotations=(0, 90, 180),
    ),
    _mnist(
        "mnist-pixels", "MNIST-5k, four permutations of the pixels", groups=4, permute_pixels=True
    ),
)

FEDERATIONS: dict[str, HeldOut] = {
    scenario.name: HeldOut(
        scenario,
        developed=scenario in DEVELOPED,
        small=_PEOPLE if scenario.split == "natural" else {},
    )
    for scenario in (*DEVELOPED, *UNSEEN)
}


def other_methods() -> list[str]:
    """All other methods that are registered, and the variants."""
    names = [name for name in REGISTRY if name not in (*MAIN, *LEFT_OUT)]
    return [*VARIANTS, *names]


def needs_groups(algorithm: str) -> bool:
    """Whether it must be told the true groups."""
    return algorithm == TOLD or "groups=told" in algorithm


def seeds(algorithm: str) -> tuple[int, ...]:
    """The seeds that are reported of a method."""
    return MAIN_SEEDS if algorithm in MAIN else OTHER_SEEDS
