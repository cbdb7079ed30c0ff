"""How many streams a network can afford: every k with its price, and one recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ucfl.errors import UcflError
from ucfl.wireless.audience import Labels
from ucfl.wireless.system import System
from ucfl.wireless.traffic import Traffic

#: c(k, s, T_k / T_1): what k streams are worth (paper, Algorithm 2, with the network's time).
Worth = Callable[[int, float, float], float]


@dataclass(frozen=True)
class Option:
    """k streams: how well they fit, what a round costs, and what that is worth."""

    streams: int
    silhouette: float
    round_time: float
    slowdown: float
    down_bytes: float
    up_bytes: float
    joules: float
    score: float
    affordable: bool


@dataclass(frozen=True)
class Plan:
    """All options, the one to take, and why."""

    options: tuple[Option, ...]
    recommended: Option
    unit: str
    reason: str


def plan(
    clusterings: Mapping[int, tuple[float, Labels]],
    system: System,
    model_bytes: int,
    *,
    worth: Worth,
    name: str = "its worth",
    slack: float = 0.0,
    deadline: float | None = None,
    max_streams: int | None = None,
) -> Plan:
    """The best k within the constraints.

    ``clusterings`` maps each k to its silhouette and to every user's stream. ``worth``
    is the trade-off, called ``name`` in the reason; scores within ``slack`` are equal, and the
    fewest streams win. ``deadline`` bounds a round's time.
    """
    users = len(next(iter(clusterings.values()))[1])
    if max_streams is not None and not 1 <= max_streams <= users:
        raise UcflError(f"{max_streams} streams do not fit {users} users: choose 1 to {users}.")
    if deadline is not None and not deadline > 0:
        raise UcflError(f"the deadline of a round must be above 0, not {deadline:g}.")
    once = system.round_time(Traffic(1, 1), users)
    options = []
    for k, (silhouette, labels) in sorted(clusterings.items()):
        traffic = Traffic(down=k, up=1)
        time = system.round_time(traffic, users, labels)
        affordable = (deadline is None or time <= deadline) and k <= (max_streams or users)
        options.append(
            Option(
                streams=k,
                silhouette=silhouette,
                round_time=time,
                slowdown=time / once,
                down_bytes=traffic.down_bytes(model_bytes),
                up_bytes=traffic.up_bytes(model_bytes, users),
                joules=system.joules(traffic, users, labels),
                score=float(worth(k, silhouette, time / once)),
                affordable=affordable,
            )
        )
    within = [option for option in options if option.affordable]
    if not within:
        fastest = min(options, key=lambda option: option.round_time)
        raise UcflError(
            f"no number of streams meets the deadline of {deadline:g} {system.unit}: the shortest "
            f"round, with {fastest.streams} stream{'s' * (fastest.streams > 1)}, takes "
            f"{fastest.round_time:.3g} {system.unit}."
        )
    top = max(option.score for option in within)
    best = next(option for option in within if option.score >= top - slack)
    return Plan(tuple(options), best, system.unit, _reason(options, best, name, system.unit))


def _reason(options: list[Option], best: Option, name: str, unit: str) -> str:
    said = f"{best.streams} stream{'s' * (best.streams > 1)}: {name} is highest there"
    if any(not option.affordable for option in options):
        said += f" among the {sum(o.affordable for o in options)} that the constraints allow"
    said += f" ({best.score:.2f})"
    higher = [o for o in options if o.affordable and o.score > best.score]
    if higher:
        said += ", but for a difference that is not worth more streams"
    said += f"; a round takes {best.round_time:.3g} {unit}, {best.slowdown:.3g} times FedAvg's"
    most = options[-1]
    if most.streams > best.streams:
        said += f", where {most.streams} streams would take {most.round_time:.3g} {unit}"
    if best.silhouette <= 0 and best.streams == 1:
        said += "; no grouping of these users fits better than one"
    return said + "."
