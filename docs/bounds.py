"""The minimisers of Theorem 1 under label shift, with the printed complexity and with Massart's.

Run with: .venv/bin/python docs/bounds.py    (needs EMNIST; writes the JSON)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ucfl.collaboration.bounds import Setting, label_divergences, optimal_weights
from ucfl.users import SCENARIOS

RESULTS = Path(__file__).parent / "results"
SEED = 0
DIMENSIONS = (1, 100, 5000, 48_846)


def main() -> None:
    """The mean weight that a user gives itself, by form and VC dimension."""
    users = SCENARIOS["emnist-label-shift"].build(SEED)
    sizes = users.train.sizes.numpy().astype(float)
    counts = np.zeros((len(users), users.classes))
    for i, size in enumerate(sizes.astype(int)):
        labels = users.train.targets[i, :size].numpy()
        counts[i] = np.bincount(labels, minlength=users.classes)
    apart = label_divergences(counts)
    rows = []
    for form in ("printed", "massart"):
        for d in DIMENSIONS:
            setting = Setting(vc_dimension=d, form=form)
            own = np.diag(optimal_weights(sizes, apart, setting))
            row = {"form": form, "vc_dimension": d, "mean_own_weight": round(float(own.mean()), 3)}
            rows.append(row | {"estimation": round(setting.estimation(sizes.sum()), 3)})
    stored = {"command": "python docs/bounds.py", "seed": SEED, "rows": rows}
    (RESULTS / "bounds.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
