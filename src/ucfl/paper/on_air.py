"""How long methods need on air, from stored cells: nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ucfl.runs import Record, curve
from ucfl.runs.timing import common_target
from ucfl.wireless import SYSTEMS


@dataclass(frozen=True)
class OnAir:
    """One method beside FedAvg, over the seeds that all methods have.

    ``times`` to ``target``, the mean accuracy that FedAvg ends with, are in each of the paper's
    systems, with what happens before the first round; infinite where it is never reached.
    ``start_down`` and ``start_up`` are the bytes of that, of all users together.
    """

    algorithm: str
    target: float
    times: Mapping[str, float]
    models_down: float
    start_down: float
    start_up: float

    def to_json(self) -> dict[str, Any]:
        """Plain values; None stands for never."""
        times = {name: time if math.isfinite(time) else None for name, time in self.times.items()}
        return asdict(self) | {"times": times}

    def words(self) -> list[str]:
        """Under ``AIR_HEADERS``."""
        times = ["never" if math.isinf(time) else f"{time:.0f}" for time in self.times.values()]
        start = [_kilobytes(self.start_down), _kilobytes(self.start_up)]
        return [self.algorithm, f"{self.target:.1f}", *times, f"{self.models_down:.2f}", *start]


AIR_HEADERS = (
    "method", "to %", *SYSTEMS, "models down a round", "before training: kB down", "kB up",
)  # fmt: skip


def on_air(results: Mapping[str, Sequence[Record]]) -> list[OnAir]:
    """Methods on one federation, by their labels; nothing where FedAvg is not among them."""
    there = {label: each for label, each in results.items() if each}
    if "fedavg" not in there:
        return []
    seeds = set.intersection(*({r.seed for r in each} for each in there.values()))
    shared = {label: [r for r in each if r.seed in seeds] for label, each in there.items()}
    if not seeds:
        return []
    curves = {
        system: {label: curve(each, system) for label, each in shared.items()} for system in SYSTEMS
    }
    target = common_target(next(iter(curves.values())))
    if target is None:
        return []
    return [
        OnAir(
            label,
            target,
            {system: curves[system][label].time_to(target) for system in SYSTEMS},
            float(np.mean([r.traffic[:, 0].mean() for r in each])),
            float(np.mean([r.start.down_bytes(r.model_bytes) for r in each])),
            float(np.mean([r.start.up_bytes(r.model_bytes, r.users) for r in each])),
        )
        for label, each in shared.items()
    ]


def _kilobytes(count: float) -> str:
    return f"{count / 1000:,.0f}" if count else "0"
