"""How near SCAFFOLD comes to breaking down under label shift: its variates in seed 2, by round.

Run with: .venv/bin/python docs/scaffold.py    (needs EMNIST; writes the CSV)
"""

from __future__ import annotations

import csv
from pathlib import Path

from ucfl import algorithms, paper
from ucfl.paper.printed import LABEL_SHIFT
from ucfl.runs import federation

RESULTS = Path(__file__).parent / "results"
SEED, ROUNDS = 2, 60


def main() -> None:
    """The largest and the median norm of a user's variate, and whose is the largest."""
    fed = federation(paper.PAPER.scenarios[LABEL_SHIFT], SEED)
    scaffold = algorithms.find("scaffold")
    state = scaffold.start(fed)
    rows = []
    for t in range(1, ROUNDS + 1):
        state = scaffold.round(fed, state, t)
        variates = state["variates"]
        assert not isinstance(variates, float | int | str)
        norms = variates.norm(dim=1)
        accuracy = float(fed.metric(scaffold.models(state)).mean())
        rows.append(
            {
                "round": t,
                "mean_test_accuracy": f"{100 * accuracy:.2f}",
                "largest_variate": f"{float(norms.max()):.3f}",
                "median_variate": f"{float(norms.median()):.3f}",
                "examples_of_its_user": int(fed.sizes[norms.argmax()]),
            }
        )
    with (RESULTS / "scaffold-seed2.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
