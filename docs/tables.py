"""The README's tables, from stored results; the tests check that the README has exactly these.

Run with: .venv/bin/python docs/tables.py            (prints them)
          .venv/bin/python docs/tables.py --write    (puts them into README.md)
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", ROOT / "docs" / "wireless.md", RESULTS / "README.md"]
#: Table I of the paper: mean accuracy where it prints one, by scenario.
PRINTED = {
    "emnist-label-shift": {
        "user-centric": 79.4, "scaffold": 77.2, "ditto": 78.3, "fedprox": 79.6, "local": 68.2,
        "fedavg": 76.7,
    },
    "emnist-covariate-shift": {
        "user-centric": 77.9, "user-centric:streams=auto": 79.7, "scaffold": 72.5, "ditto": 74.1,
        "fedprox": 72.4, "fedavg": 70.5, "oracle": 80.7,
    },
    "cifar10-concept-shift": {
        "user-centric": 47.7, "user-centric:streams=auto": 49.1, "ditto": 44.1, "fedprox": 22.3,
        "local": 38.3, "fedavg": 24.2, "oracle": 49.5,
    },
}  # fmt: skip


def rotated_mnist() -> str:
    """Five seeds of the embedded scenario."""
    stored = json.loads((RESULTS / "rotated-mnist.json").read_text())
    lines = ["| method | mean | worst user | models down |", "|---|---|---|---|"]
    for name, row in stored["result"]["algorithms"].items():
        cells = [
            f"{row[who]['final']:.1f} ± {row['std'][who]['final']:.1f}" for who in ("mean", "worst")
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {row['traffic']['down']:g} |")
    return "\n".join(lines)


def first_cells() -> str:
    """One seed of the paper's scenarios, beside the printed values."""
    with (RESULTS / "grid.csv").open() as f:
        rows = list(csv.DictReader(f))
    lines = [
        "| scenario (rounds) | method | tested model | best | final | worst, final | printed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        table, name = PRINTED.get(row["scenario"], {}), row["algorithm"]
        # A row with streams is a cell of its own; other options are the paper's grid.
        printed = table.get(name, table.get(name.split(":")[0] if ":streams" not in name else ""))
        cells = [f"{float(row[key]):.1f}" for key in ("mean_best", "mean_final", "worst_final")]
        lines.append(
            f"| {row['scenario']} ({row['rounds']}) | {row['algorithm']} | {row['tested_model']} | "
            f"{' | '.join(cells)} | {printed or '–'} |"
        )
    return "\n".join(lines)


def on_air() -> str:
    """Time to FedAvg's final accuracy on each network."""
    systems = ("slow-uplink", "fast-uplink", "wired", "urban-macro")
    stored = {name: json.loads((RESULTS / f"on-air-{name}.json").read_text()) for name in systems}
    times = {name: stored[name]["times"]["algorithms"] for name in systems}
    heads = [f"{name} ({stored[name]['unit']})" for name in systems]
    lines = [f"| method | streams | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for label, row in times[systems[0]].items():
        each = [times[name][label]["time"] for name in systems]
        cells = ["never" if time is None else f"{time:.1f}" for time in each]
        lines.append(f"| {label} | {row['streams']:g} | {' | '.join(cells)} |")
    picks = [str(stored[name]["recommended"]) for name in systems]
    return "\n".join([*lines, f"| *recommended streams, seed 0* | | {' | '.join(picks)} |"])


TABLES = {"rotated-mnist": rotated_mnist, "first-cells": first_cells, "on-air": on_air}


def written(text: str) -> str:
    """The text with every marked table made anew."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, t=table: f"{m[1]}{t()}\n{m[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    if "--write" in sys.argv:
        for page in PAGES:
            page.write_text(written(page.read_text()))
    else:
        for table in TABLES.values():
            print(table(), end="\n\n")
