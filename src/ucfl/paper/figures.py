"""The paper's figures and the held-out ranks, drawn from stored cells: a picture per panel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ucfl.paper.cells import Entry, Floats
from ucfl.paper.claims import TARGET, silhouettes
from ucfl.paper.held_out import LAYERED
from ucfl.paper.items import (
    ADAPTIVE,
    ITEMS,
    LABEL_SHIFT_100,
    Form,
    batch_entries,
    sweep_entries,
)
from ucfl.paper.printed import COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.paper.ranks import alike
from ucfl.paper.reproduce import Measured
from ucfl.paper.standings import results, standing
from ucfl.report import figures
from ucfl.report.critical import critical_difference
from ucfl.runs import Record, curve
from ucfl.wireless import SYSTEMS

#: Silhouettes are drawn up to here: with 100 users, the rest would squeeze the peak to the edge.
MOST_STREAMS = 20

#: Panels by name; one whose cells are not there is left out.
Panels = dict[str, Figure]


def accuracy(form: Form, measured: Measured) -> Panels:
    """Mean test accuracy over rounds, in each scenario."""
    return _over_rounds("fig-accuracy", form, measured)


def parallel(form: Form, measured: Measured) -> Panels:
    """The same beside the parallel form, as far as that one was trained."""
    return _over_rounds("fig-parallel", form, measured)


def clusters(form: Form, measured: Measured) -> Panels:
    """W of the first seed: users in order of their four streams, framed, and their true groups."""
    panels = {}
    for name, entries in _by_scenario("fig-clusters", form, measured).items():
        found = measured[entries[0]][0]
        learnt, groups = found.collaboration, found.population.groups
        assert learnt is not None
        assert learnt.weights is not None
        labels = None if learnt.labels is None else learnt.labels.numpy()
        panels[name] = figures.heat_map(learnt.weights.numpy(), labels, groups=groups)
    return panels


def silhouette(form: Form, measured: Measured) -> Panels:
    """Silhouette against k. k = 1 has none, and k = m has none either."""
    panels = {}
    for name, entries in _by_scenario("fig-silhouette", form, measured).items():
        scores = [s.tolist() for r in measured[entries[0]] if (s := silhouettes(r)) is not None]
        most = min(MOST_STREAMS + 1, *map(len, scores))
        by_k = {k: [seed[k - 1] for seed in scores] for k in range(2, most)}
        panels[name] = figures.silhouettes({"user-centric": by_k})
    return panels


def time(form: Form, measured: Measured) -> Panels:
    """Accuracy against time in the three systems."""
    entries = [e for e in ITEMS["fig-time"].entries(form) if measured.get(e)]
    if not entries:
        return {}
    panels = {}
    for system in SYSTEMS:
        curves = {e.algorithm: curve(measured[e], system) for e in entries}
        # To the end of the shortest but local training's, which costs next to nothing.
        ends = [float(curve.times[-1]) for name, curve in curves.items() if name != "local"]
        until = min(ends) if ends else None
        panels[system] = figures.over_time(curves, target=TARGET, until=until)
    return panels


def batch(form: Form, measured: Measured) -> Panels:
    """Accuracy against n_k, in both EMNIST settings with m = 100."""
    curves = {}
    for scenario in (LABEL_SHIFT_100, COVARIATE_SHIFT):
        found = {k: measured[e] for k, e in batch_entries(form, scenario).items() if e in measured}
        if found:
            values = _as_many([[r.value("mean", "best") for r in each] for each in found.values()])
            curves[form.scenarios[scenario].name] = (list(found), np.transpose(values))
    xlabel = "$n_k$, examples in a batch of the variance"
    return {"n_k": figures.against(curves, xlabel=xlabel)} if curves else {}


def beyond(form: Form, measured: Measured) -> Panels:
    """Over rounds in each scenario; and, under label shift, against every fixed width."""
    swept = sweep_entries(form)
    panels = {}
    for name, entries in _by_scenario("beyond", form, measured).items():
        shown = [entry for entry in entries if entry not in swept.values()]
        curves = {e.algorithm: _curves(measured[e], None) for e in shown}
        panels[name] = figures.over_rounds(curves, width=figures.DOUBLE)
    found = {width: measured[entry] for width, entry in swept.items() if measured.get(entry)}
    if found:
        best = {k: [r.value("mean", "best") for r in each] for k, each in found.items()}
        lines = {"user-centric": (list(best), np.transpose(_as_many(best.values())))}
        for label in (LAYERED, ADAPTIVE, "fedavg"):
            if results := measured.get(form.entry(LABEL_SHIFT, label)):
                level = [[r.value("mean", "best")] * len(best) for r in results]
                lines[label] = (list(best), np.array(level))
        xlabel = "fixed width $h$ of the kernel, in units of the noise floor"
        panels["widths"] = figures.against(lines, xlabel=xlabel, logarithmic=True)
    return panels


def held_out(form: Form, measured: Measured) -> Panels:
    """Average ranks over the held-out federations: of the main methods, and of all."""
    found = results(form, measured)
    made = {"ranks-main": standing(found, main=True), "ranks": standing(found)}
    panels = {}
    for name, each in made.items():
        if each is not None:
            average = each.block.average
            groups = alike(average, each.difference)
            panels[name] = critical_difference(average, each.difference, groups)
    return panels


FIGURES: dict[str, Callable[[Form, Measured], Panels]] = {
    "fig-accuracy": accuracy,
    "fig-clusters": clusters,
    "fig-silhouette": silhouette,
    "fig-time": time,
    "fig-parallel": parallel,
    "fig-batch": batch,
    "beyond": beyond,
    "held-out": held_out,
}


def draw(item: str, form: Form, measured: Measured, folder: Path) -> list[Path]:
    """Write every panel of a figure as PDF and SVG."""
    return [
        figures.save(figure, folder / f"{item}-{panel}{suffix}")
        for panel, figure in FIGURES[item](form, measured).items()
        for suffix in (".pdf", ".svg")
    ]


def _as_many(values: Collection[Sequence[float]]) -> list[Sequence[float]]:
    """As many seeds of everything as everything has."""
    seeds = min(map(len, values))
    return [each[:seeds] for each in values]


def _over_rounds(item: str, form: Form, measured: Measured) -> Panels:
    panels = {}
    for name, entries in _by_scenario(item, form, measured).items():
        shortest = min(e.scenario.rounds for e in entries) if item == "fig-parallel" else None
        curves = {e.algorithm: _curves(measured[e], shortest) for e in entries}
        panels[name] = figures.over_rounds(curves, width=figures.DOUBLE)
    return panels


def _curves(results: Sequence[Record], rounds: int | None) -> Floats:
    """[seeds, rounds + 1] mean test accuracies, all of them or the first."""
    curves = np.stack([record.mean for record in results])
    return curves if rounds is None else curves[:, : rounds + 1]


def _by_scenario(item: str, form: Form, measured: Measured) -> dict[str, list[Entry]]:
    """The entries of a figure that have cells, by the name of their scenario."""
    found: dict[str, list[Entry]] = {}
    for entry in ITEMS[item].entries(form):
        if measured.get(entry):
            found.setdefault(entry.scenario.name, []).append(entry)
    return found
