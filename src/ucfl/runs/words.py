"""A run in a line, as a notebook shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ucfl.errors import UcflError, first_line
from ucfl.users.names import short
from ucfl.words import counted

if TYPE_CHECKING:
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
