"""The pictures of the explanation pages, from stored results and one collaboration round.

Run with: .venv/bin/python docs/explanation/pictures.py docs/explanation
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import ucfl
from ucfl.algorithms import find
from ucfl.collaboration import stream_choices
from ucfl.report import save

RESULTS = Path(__file__).parent.parent / "results"
NETWORKS = ("slow-uplink", "fast-uplink", "wired")
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee")
WIDE = (6.4, 2.9)


def one_model() -> Figure:
    """Mean and worst user of each method, five seeds."""
    stored = json.loads((RESULTS / "rotated-mnist.json").read_text())["result"]["algorithms"]
    labels = ["fedavg", "local", "user-centric", "user-centric:streams=auto", "oracle"]
    figure, axes = plt.subplots(figsize=WIDE)
    for place, (who, colour) in enumerate(zip(("mean", "worst"), COLOURS, strict=False)):
        heights = [stored[label][who]["final"] for label in labels]
        errors = [stored[label]["std"][who]["final"] for label in labels]
        where = np.arange(len(labels)) + 0.36 * place - 0.18
        words = "mean over users" if who == "mean" else "worst user"
        axes.bar(where, heights, 0.34, yerr=errors, color=colour, label=words, capsize=2)
    axes.set_xticks(range(len(labels)), [label.replace(":", ":\n") for label in labels])
    axes.set_ylabel("test accuracy in %")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, ncols=2, loc="lower right")
    return figure


def measured() -> dict[str, Any]:
    """W of rotated-mnist, seed 0, and the true groups."""
    fed = ucfl.runs.federation(ucfl.users.find("rotated-mnist"), 0)
    state = find("user-centric").start(fed)
    assert fed.groups is not None
    weights: Any = state["weights"]
    return {"weights": weights.numpy(), "groups": fed.groups.numpy()}


def weights(found: dict[str, Any]) -> Figure:
    """W, users ordered by their true group."""
    order = np.argsort(found["groups"], kind="stable")
    figure, axes = plt.subplots(figsize=(4.2, 3.4))
    shown = axes.imshow(found["weights"][np.ix_(order, order)], cmap="Blues", vmin=0)
    for border in np.flatnonzero(np.diff(found["groups"][order])) + 0.5:
        axes.axhline(border, color="#bbbbbb", linewidth=0.7)
        axes.axvline(border, color="#bbbbbb", linewidth=0.7)
    axes.set_xticks(range(0, len(order), 5))
    axes.set_yticks(range(0, len(order), 5))
    axes.set_xlabel("learns from user j")
    axes.set_ylabel("user i")
    figure.colorbar(shown, label="weight w_ij")
    return figure


def silhouette(found: dict[str, Any]) -> Figure:
    """How well the rows of W fall into k groups."""
    choices = stream_choices(found["weights"], 12, 0)
    figure, axes = plt.subplots(figsize=WIDE)
    axes.plot(list(choices), [score for score, _ in choices.values()], "o-", color=COLOURS[0])
    axes.set_xticks(list(choices))
    axes.set_xlabel("streams k")
    axes.set_ylabel("silhouette")
    axes.set_ylim(bottom=0)
    return figure


def on_air() -> Figure:
    """Time until FedAvg's final accuracy, on each of the paper's networks."""
    found = {
        name: json.loads((RESULTS / f"on-air-{name}.json").read_text())["times"]["algorithms"]
        for name in NETWORKS
    }
    labels = list(found[NETWORKS[0]])
    figure, axes = plt.subplots(figsize=WIDE)
    for place, (label, colour) in enumerate(zip(labels, COLOURS, strict=True)):
        times = [found[name][label]["time"] for name in NETWORKS]
        where = np.arange(len(NETWORKS)) + 0.16 * (place - 2)
        axes.bar(where, [time or 0 for time in times], 0.15, color=colour, label=label)
    axes.set_xticks(range(len(NETWORKS)), NETWORKS)
    axes.set_ylabel("time in T_dl")
    axes.legend(frameon=False, fontsize=8)
    return figure


def main(target: Path) -> None:
    """Draw all of them."""
    found = measured()
    pictures = {
        "one-model": one_model(),
        "weights": weights(found),
        "silhouette": silhouette(found),
        "on-air": on_air(),
    }
    for name, figure in pictures.items():
        figure.tight_layout()
        save(figure, target / f"{name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
