"""Accuracy for seconds and for joules: every stored method on a network, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.measure import Measure
from ucfl.runs.folder import deviation
from ucfl.runs.paired import ERROR_RATE, SEEDS_FOR_A_TEST, t_test
from ucfl.runs.record import Record
from ucfl.runs.timing import curve, network, participants
from ucfl.wireless import Network, System

Floats = NDArray[np.float64]

#: What is spent: time on the network, or energy.
Cost = Literal["time", "joules"]


@dataclass(frozen=True, eq=False)
class Spending:
    """One method, means over its seeds: what each round has cost by its end, and what it gave.

    All arrays are [T + 1], round 0 being the untrained model, and ``tests`` [seeds, T + 1].
    ``joules`` is NaN where a network knows no power. ``validation`` is what rounds and methods are
    chosen by, ``test`` what is reported. ``parts`` says which parts of the model have how many
    streams.
    """

    label: str
    down: float
    up: float
    parts: tuple[str, ...]
    time: Floats
    joules: Floats
    validation: Floats
    seeds: tuple[int, ...]
    tests: Floats

    @property
    def test(self) -> Floats:
        """What is reported: the mean over seeds."""
        mean: Floats = self.tests.mean(0)
        return mean

    def cost(self, kind: Cost) -> Floats:
        """What was spent, of one kind."""
        return self.time if kind == "time" else self.joules

    @property
    def words(self) -> str:
        """The method, what it sends, and which parts are personal."""
        sent = f"{self.down:.3g} model{'s' * (self.down != 1)} down and {self.up:.3g} up a round"
        shared = f"; {', '.join(self.parts)}" if self.parts else ""
        return f"{self.label} ({sent}{shared})"


@dataclass(frozen=True)
class Point:
    """A method after a round: what it has cost, its validation and its test value.

    ``deviation`` is that of the test value over ``seeds``; one seed has none (0 here).
    """

    label: str
    round: int
    cost: float
    validation: float
    test: float
    deviation: float
    seeds: int

    def text(self, measure: Measure) -> str:
        """The test value as it is shown."""
        return measure.text(self.test, self.deviation if self.seeds > 1 else None)


@dataclass(frozen=True)
class Rival:
    """Another method's best point for the same budget, and whether chance tells them apart.

    ``p`` is that of a paired t-test over the seeds that both have; None where they are too few.
    """

    point: Point
    p: float | None

    @property
    def shown(self) -> bool:
        """Whether the two are told apart at the error rate."""
        return self.p is not None and self.p < ERROR_RATE


def spendings(
    records: Mapping[str, Sequence[Record]], system: str | System | Network
) -> dict[str, Spending]:
    """Every method's spending on one network."""
    return {label: _spending(label, each, system) for label, each in records.items()}


def _spending(label: str, records: Sequence[Record], system: str | System | Network) -> Spending:
    timed = curve(records, system)
    length = len(timed.times)
    joules = [
        network(system, one).energy(
            one.start, one.traffic, one.users, one.audience, participants(one)
        )[:length]
        for one in records
    ]
    last = np.mean([one.traffic[:, :2].mean(0) for one in records], axis=0)
    return Spending(
        label,
        float(last[0]),
        float(last[1]),
        _parts(records[0]),
        timed.times,
        np.mean(joules, axis=0),
        np.mean([one.validation[:length] for one in records], axis=0),
        tuple(one.seed for one in records),
        np.array([one.mean[:length] for one in records]),
    )


def _parts(record: Record) -> tuple[str, ...]:
    """Streams of each part, where the model is mixed by parts."""
    audience = record.audience
    if audience is None or audience.labels is not None:
        return ()
    return tuple(_part(share, int(labels.max()) + 1) for share, labels in audience.parts)


def _part(share: float, streams: int) -> str:
    return f"{streams} stream{'s' * (streams > 1)} of {share:.1%} of the model"


def is_told(label: str) -> bool:
    """Whether a method is told the true groups."""
    name, *options = label.partition(",")[0].split(":")  # behind it, what was compressed
    return name == "oracle" or "groups=told" in options


def pareto_front(
    found: Mapping[str, Spending], measure: Measure, kind: Cost = "time"
) -> list[Point]:
    """Points that no cheaper one equals, from the cheapest on; judged by validation.

    Untrained models are no answer, so round 0 is left out; nor are methods that are told the true
    groups, which nobody knows in practice.
    """
    points = [
        _point(each, t, float(cost))
        for label, each in found.items()
        if not is_told(label)
        for t, cost in enumerate(each.cost(kind))
        if t > 0 and math.isfinite(cost) and not math.isnan(each.validation[t])
    ]
    points.sort(key=lambda point: (point.cost, -measure.goodness(point.validation)))
    front: list[Point] = []
    for point in points:
        if not front or measure.goodness(point.validation) > measure.goodness(front[-1].validation):
            front.append(point)
    return front


def _point(found: Spending, t: int, cost: float) -> Point:
    tests = found.tests[:, t]
    return Point(
        found.label,
        t,
        cost,
        float(found.validation[t]),
        float(tests.mean()),
        float(deviation(tests)),
        len(tests),
    )


def rivals(
    found: Mapping[str, Spending], measure: Measure, kind: Cost, limit: float, best: Point
) -> list[Rival]:
    """What every other method has to offer within a budget, the best by validation first.

    The difference to the best point is tested seed by seed.
    """
    others = [
        front[-1]
        for label, each in found.items()
        if label != best.label
        and (front := [p for p in pareto_front({label: each}, measure, kind) if p.cost <= limit])
    ]
    others.sort(key=lambda point: -measure.goodness(point.validation))
    return [
        Rival(other, _p(found[best.label], best, found[other.label], other)) for other in others
    ]


def _p(ours: Spending, mine: Point, theirs: Spending, other: Point) -> float | None:
    places = dict(zip(theirs.seeds, theirs.tests[:, other.round], strict=True))
    differences = [
        value - places[seed]
        for seed, value in zip(ours.seeds, ours.tests[:, mine.round], strict=True)
        if seed in places
    ]
    return t_test(np.array(differences)) if len(differences) >= SEEDS_FOR_A_TEST else None


def best_within(front: Sequence[Point], limit: float, what: str) -> Point:
    """The last point of a front that costs no more than ``limit``."""
    within = [point for point in front if point.cost <= limit]
    if within:
        return within[-1]
    if not front:
        raise UcflError("these runs cost nothing that this network can measure; choose another.")
    raise UcflError(
        f"nobody has trained a round within {what}: the first one, of {front[0].label}, costs "
        f"{front[0].cost:.3g}; give more."
    )


def fronts_to_json(found: Mapping[str, Spending], measure: Measure) -> dict[str, Any]:
    """Both fronts and every method's curve, as plain values."""
    kinds: tuple[Cost, ...] = ("time", "joules")
    return {
        "methods": {
            label: {
                "down": each.down,
                "up": each.up,
                "parts": list(each.parts),
                "time": each.time.tolist(),
                "joules": [None if math.isnan(one) else one for one in each.joules.tolist()],
                "test": each.test.tolist(),
                "validation": each.validation.tolist(),
            }
            for label, each in found.items()
        },
        "fronts": {
            kind: [asdict(point) for point in pareto_front(found, measure, kind)] for kind in kinds
        },
    }
