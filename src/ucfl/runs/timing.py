"""Metrics against time on air, for any system, from what runs have stored: nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ucfl import wireless
from ucfl.measure import ACCURACY, Measure
from ucfl.runs.folder import Run
from ucfl.wireless import Site, System


@dataclass(frozen=True)
class Curve:
    """``times`` [T + 1] at which rounds end, and the users' mean and worst value that stand then.

    Runs that differ in their seed alone are averaged round by round.
    """

    times: NDArray[np.float64]
    mean: NDArray[np.float64]
    worst: NDArray[np.float64]
    unit: str
    measure: Measure = ACCURACY

    def time_to(self, target: float) -> float:
        """When the mean first is as good as ``target`` (shares in percent); infinite if never."""
        reached = self.measure.reached(self.mean, target)
        return math.inf if reached is None else float(self.times[reached])


def curve(
    runs: Run | Sequence[Run], system: str | System | Site, *, seed: int | None = None
) -> Curve:
    """The metric against time of one algorithm's runs; a seed draws the computing times."""
    every = [runs] if isinstance(runs, Run) else list(runs)
    length = min(run.checkpoint.round for run in every) + 1
    networks = [network(system, run) for run in every]
    times = [
        net.elapsed(
            run.start_traffic,
            run.checkpoint.traffic.numpy(),
            run.users,
            run.audience,
            seed,
            run.checkpoint.cohorts.numpy(),
            **deadline(system, run),
        )
        for net, run in zip(networks, every, strict=True)
    ]
    tests, measure = [run.test[:length] for run in every], every[0].measure
    return Curve(
        np.mean([time[:length] for time in times], axis=0),
        np.mean([[measure.mean(row) for row in test] for test in tests], axis=0),
        np.mean([[measure.worst(row) for row in test] for test in tests], axis=0),
        networks[0].unit,
        measure,
    )


def time_to(
    runs: Run | Sequence[Run],
    system: str | System | Site,
    target: float,
    *,
    seed: int | None = None,
) -> float:
    """When the mean first is as good as ``target`` (shares in percent); infinite if never."""
    return curve(runs, system, seed=seed).time_to(target)


def common_target(curves: Mapping[str, Curve]) -> float | None:
    """FedAvg's final mean: what every method is timed to, unless asked otherwise."""
    final = float(curves["fedavg"].mean[-1]) if "fedavg" in curves else math.nan
    return None if math.isnan(final) else final


def unequal_rounds(rounds: Mapping[str, Sequence[int]]) -> str:
    """A sentence where methods, whose runs have these rounds, are not equally trained; or none."""
    if len({count for each in rounds.values() for count in each}) < 2:
        return ""
    words = [
        f"{label} {' and '.join(map(str, sorted(set(each))))}" for label, each in rounds.items()
    ]
    return (
        f"Not equally trained, so compare with care: rounds are {', '.join(words)}; of runs that "
        "differ in their seed alone, the rounds that all of them have are counted."
    )


class Waiting(TypedDict, total=False):
    """What a run's deadline says to :meth:`System.elapsed`."""

    deadline: float
    late: NDArray[np.bool_]


def deadline(system: str | System | Site, run: Run) -> Waiting:
    """The run's deadline, where it was one on this very system, and who missed it."""
    time, name, late = run.scenario.deadline, run.scenario.system, run.checkpoint.late
    if time is None or name is None or late is None or _found(system) != wireless.find(name):
        return {}
    return {"deadline": time, "late": late.numpy()}


def network(system: str | System | Site, run: Run) -> System:
    """The system with the run's users and model in it."""
    return _found(system).serving(run.users, run.model_bytes)


def _found(system: str | System | Site) -> System | Site:
    return wireless.find(system) if isinstance(system, str) else system
