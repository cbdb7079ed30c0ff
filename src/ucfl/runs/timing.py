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
from ucfl.runs.record import Record
from ucfl.wireless import Network, System


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
    runs: Run | Record | Sequence[Run | Record],
    system: str | System | Network,
    *,
    seed: int | None = None,
) -> Curve:
    """The metric against time of one algorithm's runs; a seed draws the computing times."""
    given = [runs] if isinstance(runs, Run | Record) else list(runs)
    every = [one.record if isinstance(one, Run) else one for one in given]
    length = min(record.rounds for record in every) + 1
    networks = [network(system, record) for record in every]
    times = [
        net.elapsed(
            record.start,
            record.traffic,
            record.users,
            record.audience,
            seed,
            participants(record),
            **deadline(system, record),
        )
        for net, record in zip(networks, every, strict=True)
    ]
    return Curve(
        np.mean([time[:length] for time in times], axis=0),
        np.mean([record.mean[:length] for record in every], axis=0),
        np.mean([record.worst[:length] for record in every], axis=0),
        networks[0].unit,
        every[0].measure,
    )


def participants(record: Record) -> NDArray[np.bool_]:
    """[T, m]: who took part in each round."""
    everyone = np.ones((record.rounds, record.users), dtype=bool)
    return everyone if record.cohorts is None else record.cohorts


def time_to(
    runs: Run | Record | Sequence[Run | Record],
    system: str | System | Network,
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


def deadline(system: str | System | Network, record: Record) -> Waiting:
    """The run's deadline, where it was one on this very system, and who missed it."""
    time, name, late = record.scenario.deadline, record.scenario.system, record.late
    if time is None or name is None or late is None or _found(system) != wireless.find(name):
        return {}
    return {"deadline": time, "late": late}


def network(system: str | System | Network, record: Record) -> System:
    """The system with the run's users and model in it."""
    return _found(system).serving(record.users, record.model_bytes)


def _found(system: str | System | Network) -> System | Network:
    return wireless.find(system) if isinstance(system, str) else system
