"""How often the layered method's tests err: groups, bodies, priors, own models; no training.

Run with: python benchmarks/groups.py [seeds]
Federations of kinds that it was developed on and of others, all with seeds that nothing was chosen
on (200 and up). A row counts, over seeds, what was found of what is true. EMNIST, CIFAR-10, QMNIST
and the watch's recordings must be in UCFL_DATA; kinds whose data is not there are left out.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
from side_by_side import RESULTS
from sklearn.metrics import adjusted_rand_score

from ucfl.algorithms.sampled import NETWORKS, sampled, untrained
from ucfl.collaboration.groups import find_groups
from ucfl.collaboration.priors import log_priors
from ucfl.collaboration.prototypes import input_groups
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs import federation
from ucfl.users import SCENARIOS, Scenario

FIRST = 200
TURNED = {"groups": 4, "rotations": (0, 90, 180, 270)}
RENAMED = {"groups": 4, "permute_labels": True}
EMNIST = {"dataset": "emnist", "users": 40, "points": 10_000, "held_out": 0.5}
CIFAR = {"dataset": "cifar10", "users": 40, "points": 10_000, "held_out": 0.5}
MNIST = {"held_out": 0.5}


def shifted(alpha: float) -> dict[str, Any]:
    return {"split": "dirichlet", "alpha": alpha}


#: Fields of each kind, its true groups and kinds of inputs, and whether users' labels differ.
KINDS: dict[str, tuple[dict[str, Any], int, int, bool]] = {
    "MNIST-5k, alike": (MNIST, 1, 1, False),
    "MNIST-5k, alike, 10 users": ({**MNIST, "users": 10}, 1, 1, False),
    "MNIST-5k, Dirichlet 0.3": ({**MNIST, **shifted(0.3)}, 1, 1, True),
    "EMNIST, Dirichlet 0.1": ({**EMNIST, **shifted(0.1)}, 1, 1, True),
    "EMNIST, Dirichlet 0.4": ({**EMNIST, **shifted(0.4)}, 1, 1, True),
    "CIFAR-10, alike": ({**CIFAR, "users": 20}, 1, 1, False),
    "CIFAR-10, Dirichlet 0.5": ({**CIFAR, **shifted(0.5)}, 1, 1, True),
    "MNIST-5k, four rotations": ({**MNIST, **TURNED}, 4, 4, False),
    "MNIST-5k, four permutations": ({**MNIST, **RENAMED}, 4, 1, False),
    "EMNIST, four rotations, Dirichlet 1": ({**EMNIST, **TURNED, **shifted(1)}, 4, 4, True),
    "EMNIST, four permutations, Dirichlet 1": ({**EMNIST, **RENAMED, **shifted(1)}, 4, 1, True),
    "CIFAR-10, four permutations": ({**CIFAR, **RENAMED, "users": 20}, 4, 1, False),
}
#: Natural users: no groups, and users who differ by more than noise.
NATURAL = ("mnist-writers", "watch-people")


def found(scenario: Scenario, seed: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UcflWarning)
        fed = federation(scenario, seed)
    sample = sampled([fed.prototypes(theta) for theta in untrained(fed, NETWORKS)])
    groups = find_groups(sample, seed)
    truth = np.zeros(fed.m) if fed.groups is None else fed.groups.numpy()
    return {
        "k": groups.count,
        "rand_index": adjusted_rand_score(truth, groups.labels),
        "p_value": groups.p_value,
        "bodies": len(np.unique(input_groups(sample, groups.labels)[0])),
        "prior": bool(log_priors(sample.counts, groups.labels).any()),
        "spread": groups.spread,
    }


def row(what: str, each: list[dict[str, Any]], k: int, bodies: int) -> dict[str, Any]:
    return {
        "what": what,
        "seeds": len(each),
        "groups": k,
        "right_k": sum(one["k"] == k for one in each),
        "rand_index": float(np.mean([one["rand_index"] for one in each])),
        "right_bodies": sum(one["bodies"] == bodies for one in each),
        "priors": sum(one["prior"] for one in each),
        "own_models": sum(one["spread"] > 1 for one in each),
        "spread": [min(one["spread"] for one in each), max(one["spread"] for one in each)],
        "p_value": float(np.median([one["p_value"] for one in each])),
    }


def main(seeds: int) -> None:
    rows = []
    natural = {name: (SCENARIOS[name], 1, 1) for name in NATURAL}
    made = {name: (Scenario(**f), k, b) for name, (f, k, b, _) in KINDS.items()}
    for name, (scenario, k, bodies) in {**made, **natural}.items():
        try:
            each = [found(scenario, FIRST + seed) for seed in range(seeds)]
        except UcflError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        rows.append(row(name, each, k, bodies))
        print(json.dumps(rows[-1]), flush=True)
        text = {"command": f"python benchmarks/groups.py {seeds}", "rows": rows}
        (RESULTS / "groups.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
