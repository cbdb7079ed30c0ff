"""Other people's published tables, to hold our methods and theirs against.

A yardstick is one entry here. Its cells are those of ``ucfl reproduce yardsticks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ucfl.paper.printed import Printed
from ucfl.users import Scenario

#: Seeds of every cell.
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Yardstick:
    """A published column: its federation, the rates to choose from, and what it prints.

    ``printed`` has None for methods of ours that it does not have, or whose value was not found.
    ``weighted``: users count by their data in the mean. ``differs`` says where we do otherwise.
    """

    title: str
    source: str
    scenario: Scenario
    rates: tuple[float, ...]
    printed: Mapping[str, Printed | None]
    weighted: bool
    differs: tuple[str, ...]

    @property
    def scenarios(self) -> dict[float, Scenario]:
        """By the rate, which is part of the name."""
        return {rate: _with_rate(self.scenario, rate) for rate in self.rates}

    @property
    def stand_ins(self) -> dict[float, Scenario]:
        """The same in small, on embedded images."""
        small = Scenario(
            name=f"embedded-{self.scenario.name}", points=320, users=8, split="dirichlet",
            alpha=self.scenario.alpha, held_out=self.scenario.held_out, model="mlp",
            momentum=self.scenario.momentum, weight_decay=self.scenario.weight_decay,
            schedule="constant" if self.scenario.schedule == "constant" else "steps:at=1",
            batch=10, rounds=2,
        )  # fmt: skip
        return {rate: _with_rate(small, rate) for rate in self.rates}


def _with_rate(scenario: Scenario, rate: float) -> Scenario:
    return scenario.change({"name": f"{scenario.name}-lr{rate:g}", "lr": rate})


FEDEM = Yardstick(
    title="FedEM's Table 2, EMNIST (Marfoq et al., NeurIPS 2021)",
    source="the table in the README of the authors' repository omarfoq/FedEM, which repeats these "
    "columns of Table 2; settings from its run_emnist.sh, models.py and utils/optim.py",
    scenario=Scenario(
        name="fedem-emnist",
        description="EMNIST, 100 users, Dirichlet 0.4, a tenth of byclass (FedEM, Table 2)",
        dataset="emnist",
        users=100,
        points=81_425,
        split="dirichlet",
        alpha=0.4,
        model="cnn-2048",
        initialisation="own",
        momentum=0.9,
        weight_decay=5e-4,
        schedule="steps:at=100+150",
        batch=128,
        rounds=200,
    ),
    rates=(0.01, 0.03, 0.1),
    printed={
        "local": Printed(71.9),
        "fedavg": Printed(82.6),
        "fedavg-finetune": Printed(83.1),
        "fedem": Printed(83.5),
        "user-centric": None,
        "layered-user-centric": None,
    },
    weighted=True,
    differs=(
        "EMNIST's 116,323 byclass test images stand in for all of byclass; 81,425 of them, a tenth "
        "of byclass, are drawn.",
        "Half of each user's 20% is for validation, which chooses the rate and the round; the "
        "other half is the test. They test on all of it.",
        "The other methods of the table (FedProx, Clustered FL, pFedMe) are left out: their "
        "printed values could not be looked up.",
    ),
)

PFLLIB = Yardstick(
    title="PFLlib's leaderboard, Fashion-MNIST, practical label skew (Zhang et al., JMLR 2025)",
    source="pfllib.com/benchmark.html; FedPer's and FedRep's values from Table 1 of GPFL (Zhang et "
    "al., ICCV 2023), by the same authors, whose other values are the leaderboard's; settings are "
    "the defaults of system/main.py in TsingZ0/PFLlib, and its server divides all users' correct "
    "answers by all test examples, so users count by their data",
    scenario=Scenario(
        name="pfllib-fashion",
        description="Fashion-MNIST, 20 users, Dirichlet 0.1 (PFLlib's practical setting)",
        dataset="fashion-mnist",
        users=20,
        split="dirichlet",
        alpha=0.1,
        held_out=0.25,
        model="cnn-512",
        initialisation="own",
        momentum=0.0,
        batch=10,
        rounds=2000,
    ),
    rates=(0.005,),
    printed={
        "fedavg": Printed(85.85, 0.19),
        "fedprox": Printed(85.63, 0.57),
        "per-fedavg": Printed(95.10, 0.10),
        "pfedme": Printed(97.25, 0.17),
        "ditto": Printed(97.47, 0.04),
        "apfl": Printed(97.25, 0.08),
        "fedfomo": Printed(97.21, 0.02),
        "fedamp": Printed(97.20, 0.06),
        "fedala": Printed(97.66, 0.02),
        "fedper": Printed(97.44, 0.06),
        "fedrep": Printed(97.56, 0.04),
        "local": None,
        "fedbabu": None,
        "lg-fedavg": None,
        "user-centric": None,
        "layered-user-centric": None,
    },
    weighted=True,
    differs=(
        "They report the best test round of 2,000; best here is the round that validation accuracy "
        "chooses, on the other half of each user's 25%, and 'highest' is the best test round.",
        "Hyper-parameters are our defaults, theirs were tuned per method; pFedMe is the form "
        "`authors` (3 inner steps, 20 outer ones), theirs has its own.",
        "Users are drawn by our Dirichlet split, which gives every user three examples at least; "
        "theirs draws again until each user has a smallest number.",
        "FedBABU's and LG-FedAvg's printed values could not be looked up.",
    ),
)

YARDSTICKS = {each.scenario.name: each for each in (FEDEM, PFLLIB)}
#: Both forms' scenarios by name.
SCENARIOS = {s.name: s for each in YARDSTICKS.values() for s in each.scenarios.values()}
STAND_INS = {
    real.name: each.stand_ins[rate]
    for each in YARDSTICKS.values()
    for rate, real in each.scenarios.items()
}
