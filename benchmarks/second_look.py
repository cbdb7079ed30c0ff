"""Are prototypes of untrained networks enough, or would a second look after some rounds see more?

Run with: python benchmarks/second_look.py [seeds]
Groups are looked for in prototypes of θ⁰ alone, of the method's four untrained networks, and of
FedAvg's model after some rounds. *Nearest* is the share of users who are nearest to their own group
once everybody else's is told: no clustering of the same prototypes can do much better. Kinds of
federations that were developed on, seeds 0 and up. EMNIST and CIFAR-10 must be in UCFL_DATA.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from groups import CIFAR, EMNIST, RENAMED, TURNED, shifted
from side_by_side import RESULTS
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from ucfl.algorithms import REGISTRY
from ucfl.algorithms.sampled import NETWORKS, sampled, untrained
from ucfl.collaboration.groups import find_groups
from ucfl.collaboration.prototypes import nearest_groups
from ucfl.federation import Federation
from ucfl.runs import federation
from ucfl.users import Scenario

ROUNDS = (5, 20)
TRAINING = {"batch": 32}
KINDS: dict[str, dict[str, Any]] = {
    "CIFAR-10, four rotations, Dirichlet 0.5": {**CIFAR, **TURNED, **shifted(0.5), "lr": 0.03},
    "CIFAR-10, four permutations": {**CIFAR, **RENAMED, "users": 20, "lr": 0.03},
    "EMNIST, four rotations, Dirichlet 0.15": {**EMNIST, **TURNED, **shifted(0.15), "lr": 0.1},
}


def found(fed: Federation, networks: list[Tensor]) -> dict[str, Any]:
    sample = sampled([fed.prototypes(theta) for theta in networks])
    groups = find_groups(sample, fed.seed)
    assert fed.groups is not None
    truth = fed.groups.numpy()
    return {
        "k": groups.count,
        "rand_index": float(adjusted_rand_score(truth, groups.labels)),
        "nearest": float((nearest_groups(sample.pairs(), truth) == truth).mean()),
    }


def looks(scenario: Scenario, seed: int) -> dict[str, dict[str, Any]]:
    fed = federation(scenario, seed)
    each = {
        "one untrained network": found(fed, untrained(fed, 1)),
        f"{NETWORKS} untrained networks": found(fed, untrained(fed, NETWORKS)),
    }
    fedavg = REGISTRY["fedavg"]()
    state = fedavg.start(fed)
    for t in range(1, max(ROUNDS) + 1):
        state = fedavg.round(fed, state, t)
        if t in ROUNDS:
            each[f"FedAvg's model after {t} rounds"] = found(fed, [fedavg.models(state)])
    return each


def main(seeds: int) -> None:
    rows = []
    for what, fields in KINDS.items():
        scenario = Scenario(**{**fields, **TRAINING})
        each = [looks(scenario, seed) for seed in range(seeds)]
        for name in each[0]:
            row = {
                "what": what,
                "features": name,
                "k": [one[name]["k"] for one in each],
                "rand_index": float(np.mean([one[name]["rand_index"] for one in each])),
                "nearest": float(np.mean([one[name]["nearest"] for one in each])),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    text = {"command": f"python benchmarks/second_look.py {seeds}", "rows": rows}
    (RESULTS / "second-look.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
