"""The README's picture, from the runs of `make demo`: who learns from whom, and what it gives.

Run with: .venv/bin/python docs/picture.py runs/demo docs/demo.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from ucfl.runs import find_runs

COLOURS = {"user-centric": "#0b6e99", "oracle": "#5b5b5b", "fedavg": "#c8553d", "local": "#e0a458"}


def main(source: Path, target: Path) -> None:
    """Draw the picture."""
    runs = [run for found in find_runs(source).values() for run in found]
    mixed = next(run for run in runs if run.algorithm.name == "user-centric")
    weights = mixed.checkpoint.state["weights"]
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 3.6), width_ratios=(1, 1.35), layout="constrained"
    )
    image = left.imshow(weights, cmap="Blues", vmin=0)
    figure.colorbar(image, ax=left, label="weight $w_{ij}$", shrink=0.85)
    left.set(title="Who learns from whom", xlabel="user j", ylabel="user i")
    left.set_xticks(range(0, 20, 5))
    left.set_yticks(range(0, 20, 5))
    curves = {run.algorithm.name: 100 * run.per_user("test_accuracy").mean(1) for run in runs}
    height = 101.0
    for name in sorted(curves, key=lambda name: -curves[name][-1]):
        curve = curves[name]
        height = min(curve[-1], height - 6)  # labels keep apart
        right.plot(curve, color=COLOURS[name], lw=2.4 if name == "user-centric" else 1.4)
        right.text(15.3, height, f"{name}  {curve[-1]:.1f}", color=COLOURS[name], va="center")
    right.set(title="Mean test accuracy of 20 users, in %", xlabel="round", ylim=(0, 100))
    right.set_xlim(0, 19.5)
    right.set_xticks(range(0, 16, 3))
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
