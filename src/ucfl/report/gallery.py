"""The figures that ``ucfl figure`` knows by name, made from runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucfl.errors import UcflError
from ucfl.measure import Measure
from ucfl.report import figures
from ucfl.report.collaboration import Panel, panels
from ucfl.runs import Curve, Run, curve
from ucfl.runs.budget import Cost, pareto_front, spendings
from ucfl.runs.timing import common_target
from ucfl.users.names import numbered_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Look:
    """What can be chosen about a figure: the network that times are for, the target, the width."""

    system: str = "slow-uplink"
    target: float | None = None
    width: float = figures.SINGLE


def mean(runs: Runs, look: Look) -> Figure:
    """The mean over rounds, a deviation over seeds either side."""
    measure = _measure(runs)
    return figures.over_rounds(
        _over_seeds(runs, measure.mean), ylabel=_label(measure), width=look.width
    )


def worst_user(runs: Runs, look: Look) -> Figure:
    """The worst user's value over rounds, a deviation over seeds either side."""
    measure = _measure(runs)
    return figures.over_rounds(
        _over_seeds(runs, measure.worst), ylabel=_label(measure, "worst user's"), width=look.width
    )


def mean_over_time(runs: Runs, look: Look) -> Figure:
    """The mean against time on a network, until the last one to reach the target has it."""
    curves = _curves(runs, look)
    target, unit = _target(curves, look), next(iter(curves.values())).unit
    arrivals = [one.time_to(target) for one in curves.values()]
    until = 1.15 * max((time for time in arrivals if time < math.inf), default=0)
    return figures.over_time(
        curves, unit, target=target, until=until, ylabel=_label(_measure(runs)), width=look.width
    )


def time_to_target(runs: Runs, look: Look) -> Figure:
    """Time on a network until the mean is FedAvg's final one, or the target given."""
    curves = _curves(runs, look)
    target = _target(curves, look)
    times = {label: one.time_to(target) for label, one in curves.items()}
    unit = next(iter(curves.values())).unit.replace("T_dl", "$T_{dl}$")
    order = dict(sorted(times.items(), key=lambda item: item[1]))
    measure = _measure(runs)
    goal = f"{measure.text(target)}{measure.sign}"
    return figures.bars(order, xlabel=f"time to {goal} in {unit}", width=look.width)


def weights(runs: Runs, look: Look) -> Figure:
    """W with users ordered by stream, of the first seed that measured it."""
    seed, found = next(iter(_measured(runs).items()))
    run = next(run for each in runs.values() for run in each if run.seed == seed)
    groups, names = run.about["users"].get("groups"), tuple(run.names)
    return figures.heat_map(
        found.weights,
        found.labels,
        groups=groups,
        names=None if names == numbered_names(run.users) else names,
        width=look.width,
    )


def silhouettes(runs: Runs, look: Look) -> Figure:
    """Silhouette against the number of streams, over the seeds that measured it."""
    every = list(_measured(runs).values())
    most = min(len(found.silhouettes) for found in every)
    scores = {k: [found.silhouettes[k - 1] for found in every] for k in range(1, most + 1)}
    picks = [found.suggested for found in every]
    usual = max(sorted(set(picks)), key=picks.count)
    scenario = next(iter(runs.values()))[0].scenario.name
    return figures.silhouettes({scenario: scores}, usual, width=look.width)


def pareto(runs: Runs, look: Look) -> Figure:
    """The mean against what a network spends, in time and in joules, and the best for each cost."""
    measure = _measure(runs)
    found = spendings(
        {label: [r.record for r in each] for label, each in runs.items()}, look.system
    )
    unit = next(iter(_curves(runs, look).values())).unit
    kinds: list[tuple[Cost, str]] = [
        ("time", f"time in {unit.replace('T_dl', '$T_{dl}$')}"),
        ("joules", "energy of the cell and its users in J"),
    ]
    panels = {}
    for kind, xlabel in kinds:
        front = pareto_front(found, measure, kind)
        if front:
            curves = {label: (each.cost(kind), each.test) for label, each in found.items()}
            best = ([point.cost for point in front], [point.test for point in front])
            panels[xlabel] = (curves, best)
    return figures.fronts(panels, ylabel=_label(measure), width=look.width)


FIGURES: dict[str, Callable[[Runs, Look], Figure]] = {
    "mean": mean,
    "worst-user": worst_user,
    "mean-over-time": mean_over_time,
    "time-to-target": time_to_target,
    "weights": weights,
    "silhouettes": silhouettes,
    "pareto": pareto,
}


def _over_seeds(runs: Runs, statistic: Callable[..., float]) -> dict[str, list[list[float]]]:
    """The statistic over users for every seed and round that all seeds of a method have."""
    found = {}
    for label, each in runs.items():
        tests = [run.split("test") for run in each]
        length = min(map(len, tests))
        found[label] = [[statistic(row) for row in test[:length]] for test in tests]
    return found


def _measure(runs: Runs) -> Measure:
    return next(iter(runs.values()))[0].measure


def _label(measure: Measure, who: str = "mean") -> str:
    return f"{who} test {measure.words}{measure.unit}"


def _curves(runs: Runs, look: Look) -> dict[str, Curve]:
    return {label: curve(each, look.system) for label, each in runs.items()}


def _target(curves: dict[str, Curve], look: Look) -> float:
    target = common_target(curves) if look.target is None else look.target
    if target is None:
        raise UcflError("no run of fedavg is there to take a target from; give --target.")
    return target


def _measured(runs: Runs) -> dict[int, Panel]:
    every = panels(run.record for each in runs.values() for run in each)
    found = {seed: each[0] for seed, each in sorted(every.items())}
    if not found:
        raise UcflError(
            "none of these runs has measured W: add a run of user-centric, or write "
            "collaboration(state) in an algorithm of your own."
        )
    return found
