"""A run in a line and a comparison in a small table, as a notebook shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ucfl.errors import UcflError, first_line
from ucfl.measure import Measure
from ucfl.users.names import short
from ucfl.words import counted

if TYPE_CHECKING:
    from ucfl.runs.compare import Comparison
    from ucfl.runs.folder import Run


def in_words(run: Run) -> str:
    """What was trained on what, how far, and how well; whatever the folder holds by now."""
    said = f"Run: {run.algorithm.label} on {run.scenario.name}, seed {run.seed}"
    try:
        said += f", {_results(replace(run))}"  # a copy: it keeps nothing of a run that goes on
    except UcflError as error:
        said += f", {first_line(error)}"
    return f"{said}, folder {run.folder}"


def _results(run: Run) -> str:
    measure, final, summary = run.measure, run.split("test")[-1], run.summary
    rounds = f"{run.history['round'].max()} of {counted(run.scenario.rounds, 'round')}"
    if np.isnan(final).all():
        return f"{rounds}, no test data"
    mean, worst = summary["mean"], summary["worst"]
    place = np.nanargmin(final) if measure.more_is_better else np.nanargmax(final)
    return (
        f"{rounds}, {measure.words}{measure.unit}: mean {measure.text(mean['final'])} (best "
        f"{measure.text(mean['best'])}), worst {measure.text(worst['final'])} "
        f"({short(run.names[int(place)])})"
    )


def table(comparison: Comparison) -> str:
    """A line for each method, best first; whatever the folders hold by now."""
    seeds = ", ".join(map(str, comparison.seeds))
    methods = counted(len(comparison.runs), "method")
    said = f"Comparison: {methods} on {comparison.scenario.name}, "
    said += f"seed{'s' if len(comparison.seeds) > 1 else ''} {seeds}"
    try:
        found = comparison.to_json()
    except UcflError as error:
        return f"{said}, {first_line(error)}"
    measure = Measure(**found["metric"])
    several = len(comparison.seeds) > 1
    rows = [["method", "mean final", "mean best", "worst final", "worst best"]]
    for label, row in found["algorithms"].items():
        cells = [
            measure.text(row[who][when], row["std"][who][when] if several else None)
            for who in ("mean", "worst")
            for when in ("final", "best")
        ]
        rows.append([label, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join([f"{said}, {measure.words}{measure.unit}", *lines])
