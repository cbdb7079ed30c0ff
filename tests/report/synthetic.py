"""Run folders as large as one likes, written with the project's own writers; nothing is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from conftest import make_federation, make_users
from ucfl import algorithms
from ucfl.collaboration import fixed_streams, stream_choices
from ucfl.runs.checkpoint import Checkpoint
from ucfl.runs.configuration import Configuration
from ucfl.runs.folder import CHECKPOINT, HISTORY
from ucfl.runs.history import write_history
from ucfl.runs.provenance import write_configuration
from ucfl.users import Scenario
from ucfl.wireless import Traffic

METHODS = (
    "fedavg", "local", "oracle", "user-centric", "user-centric:streams=4", "parallel-user-centric",
    "fedprox", "scaffold", "ditto", "pfedme", "cfl", "fedfomo",
)  # fmt: skip
GROUPS = 4


def write_runs(folder, methods=METHODS, seeds=5, rounds=300, users=100, classes=62):
    """A comparison whose accuracies rise towards a ceiling that differs by method and user."""
    scenario = Scenario(name="synthetic", users=users, rounds=rounds, groups=GROUPS, model="mlp")
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        groups = np.arange(users) * GROUPS // users
        people = make_users([40] * users, classes=classes, shape=(1, 2, 2), groups=groups)
        fed = make_federation(people, "logistic", double=False)
        state = collaboration(rng, groups, seed)
        for place, method in enumerate(methods):
            algorithm = algorithms.find(method)
            home = folder / f"{place}-{seed}"
            home.mkdir(parents=True)
            configuration = replace(
                Configuration.of(scenario, algorithm, fed, people),
                seed=seed,
                data=f"data of seed {seed}",
            )
            streams = {"local": 0, "user-centric": users}.get(method, GROUPS if place > 1 else 1)
            write_configuration(home, configuration, fed, people, Traffic(1, 1))
            point = Checkpoint(
                rounds,
                1.0,
                state if "user-centric" in method else {},
                history(rng, rounds, users, 0.7 + 0.02 * place),
                torch.tensor([[streams, 1.0, 1.0]], dtype=torch.float64).repeat(rounds, 1),
            )
            point.save(home / CHECKPOINT)
            write_history(home / HISTORY, point)


def collaboration(rng, groups, seed):
    alike = groups[:, None] == groups[None, :]
    weights = np.where(alike, 1.0, 0.1) * rng.uniform(0.5, 1.5, alike.shape)
    weights /= weights.sum(1, keepdims=True)
    choices = stream_choices(weights, 20, seed)
    plan = fixed_streams(weights, GROUPS, seed)
    return {
        "weights": torch.from_numpy(weights),
        "labels": torch.from_numpy(plan.labels),
        "silhouettes": torch.tensor([score for score, _ in choices.values()]),
        "spread": 3.0,
        "suggested": GROUPS,
    }


def history(rng, rounds, users, ceiling):
    t = np.arange(rounds + 1)[:, None]
    base = ceiling * (1 - np.exp(-t / 40)) + rng.normal(0, 0.05, users)
    return {
        metric: torch.from_numpy(np.clip(base + rng.normal(0, 0.02, base.shape), 0, 1)).float()
        for metric in ("test_accuracy", "validation_accuracy")
    }
