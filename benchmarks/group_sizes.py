"""How often users of one population are split who have very unequal amounts of data; simulated.

Run with: python benchmarks/group_sizes.py [federations]
20 users, 5 classes, 40 features of the deviations 1, 1/2, 1/3, …; every user is off its population
by a normal draw, the same for all its classes, of 0.3 times the deviations. A row is a set of
sizes: the examples of each class of ten users, twice.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from side_by_side import RESULTS

from ucfl.collaboration.groups import LEVEL, find_groups
from ucfl.collaboration.prototypes import ClassMeans

CLASSES, OWN = 5, 0.3
DEVIATIONS = 1 / np.arange(1, 41)
SIZES = {
    "30 examples of each class": [30] * 10,
    "5 to 200": [5, 5, 8, 10, 20, 30, 50, 80, 120, 200],
    "1 to 1,000": [1, 1, 1, 2, 3, 5, 20, 50, 300, 1000],
}


def one_population(sizes: list[int], rng: np.random.Generator) -> ClassMeans:
    """What users send whose examples have one distribution, but for what is a user's own."""
    n = np.repeat(sizes, 2)[:, None] * np.ones(CLASSES)
    own = OWN * DEVIATIONS * rng.standard_normal((len(n), 1, len(DEVIATIONS)))
    noise = DEVIATIONS * rng.standard_normal((*n.shape, len(DEVIATIONS))) / np.sqrt(n)[..., None]
    freedom = np.maximum(n - 1, 1)[..., None]
    squares = rng.chisquare(freedom, (*n.shape, len(DEVIATIONS))) / freedom
    variances = np.where(n > 1, (DEVIATIONS**2 * squares).sum(-1), 0.0)
    return ClassMeans.of(own + noise, variances, n)


def main(federations: int) -> None:
    rows = []
    for what, sizes in SIZES.items():
        found = [
            find_groups(one_population(sizes, np.random.default_rng([seed, 7])), seed).count
            for seed in range(federations)
        ]
        split = sum(k > 1 for k in found)
        rows.append({"what": what, "federations": federations, "split": split, "most": max(found)})
        print(json.dumps(rows[-1]), flush=True)
    text = {"command": f"python benchmarks/group_sizes.py {federations}", "level": LEVEL}
    (RESULTS / "group-sizes.json").write_text(json.dumps(text | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
