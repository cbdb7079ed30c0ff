"""How low the worst user must come out by chance alone: why Table II is hard to meet.

Run with: .venv/bin/python docs/worst_user.py    (needs EMNIST and CIFAR-10; writes the JSON)

If every user were served equally well, the worst would still be the unluckiest: the smallest of m
draws of Binomial(n_i, p) / n_i, with n_i test examples each. p is the method's measured mean.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ucfl import paper
from ucfl.paper.printed import PROPOSED, SCENARIOS, TABLE_2

RESULTS = Path(__file__).parent / "results"
DRAWS = 2000


def by_chance(sizes: np.ndarray, share: float) -> float:
    """The expected worst of users who all have this accuracy, in percent."""
    rng = np.random.default_rng(0)
    return float(100 * (rng.binomial(sizes, share, (DRAWS, len(sizes))) / sizes).min(1).mean())


def main() -> None:
    """Every printed worst user of the proposed method, FedAvg and the oracle."""
    rows = []
    for scenario in SCENARIOS:
        setting = paper.PAPER.scenarios[scenario]
        users = [setting.build(seed) for seed in range(5)]
        halves = [(u.test.sizes.numpy(), u.validation.sizes.numpy()) for u in users]
        for name in dict.fromkeys((PROPOSED[scenario], "fedavg", "oracle")):
            if name not in TABLE_2[scenario]:
                continue
            cells = paper.PAPER.entry(scenario, name).cells(range(5))
            found = [paper.Store(RESULTS).load(cell) for cell in cells]
            results = [result for result in found if result is not None]
            means = [result.value("mean", "best") / 100 for result in results]
            sizes = [halves[result.seed] for result in results]
            rows.append(
                {
                    "scenario": scenario,
                    "algorithm": name,
                    "seeds": len(results),
                    "test_examples": float(np.mean([test.mean() for test, _ in sizes])),
                    "mean": 100 * float(np.mean(means)),
                    "worst": float(np.mean([r.value("worst", "best") for r in results])),
                    "by_chance": float(
                        np.mean([by_chance(t, p) for (t, _), p in zip(sizes, means, strict=True)])
                    ),
                    "by_chance_whole": float(
                        np.mean(
                            [by_chance(t + v, p) for (t, v), p in zip(sizes, means, strict=True)]
                        )
                    ),
                    "printed": TABLE_2[scenario][name].mean,
                }
            )
    stored = {"command": "python docs/worst_user.py", "draws": DRAWS, "rows": rows}
    (RESULTS / "worst-user.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
