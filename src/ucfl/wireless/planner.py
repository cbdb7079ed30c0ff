"""How many streams a network can afford: every k with its price, and one recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

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
    #: The round's time if nobody waits for the slowest, where a share of them may be left out.
    without_slowest: float | None = None


#: Own weight (the mean of W's diagonal) from which on users learn next to nothing from others.
ALONE = 0.95


@dataclass(frozen=True)
class Limits:
    """What a round may cost; ``leave_out`` is the share of users, the slowest, not waited for."""

    deadline: float | None = None
    joules: float | None = None
    max_streams: int | None = None
    leave_out: float = 0.0

    def check(self, users: int) -> None:
        """Raise where they make no sense for so many users."""
        most = self.max_streams
        if most is not None and not 1 <= most <= users:
            raise UcflError(f"{most} streams do not fit {users} users: choose 1 to {users}.")
        for what, value in (("deadline", self.deadline), ("energy", self.joules)):
            if value is not None and not value > 0:
                raise UcflError(f"the {what} of a round must be above 0, not {value:g}.")
        if not 0 <= self.leave_out < 1:
            raise UcflError(f"leave out less than all users, not {100 * self.leave_out:g}%.")

    def allow(self, option: Option) -> bool:
        """Whether an option is within them."""
        time = option.round_time if option.without_slowest is None else option.without_slowest
        return (
            (self.deadline is None or time <= self.deadline)
            and (self.joules is None or option.joules <= self.joules)
            and (self.max_streams is None or option.streams <= self.max_streams)
        )


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
    model_bytes: float,
    *,
    worth: Worth,
    name: str = "its worth",
    slack: float = 0.0,
    limits: Limits | None = None,
    own_weight: float = 0.0,
) -> Plan:
    """The best k within the limits.

    ``clusterings`` maps each k to its silhouette and to every user's stream. ``worth``
    is the trade-off, called ``name`` in the reason; scores within ``slack`` are equal, and the
    fewest streams win. Where ``own_weight``, the mean of W's diagonal, says that users learn from
    nobody, the answer is no stream: everybody trains alone.
    """
    users = len(next(iter(clusterings.values()))[1])
    limits = limits or Limits()
    limits.check(users)
    for k, (_, labels) in clusterings.items():
        if len(np.unique(labels)) != k:
            raise UcflError(
                f"{k} streams need a listener each, and {len(np.unique(labels))} have one."
            )
    once = system.round_time(Traffic(1, 1), users)
    options = [
        _option(Traffic(k, 1), silhouette, labels, system, model_bytes, worth, once, limits)
        for k, (silhouette, labels) in sorted(clusterings.items())
    ]
    if wrong := [option for option in options if math.isnan(option.score)]:
        raise UcflError(
            f"the trade-off {name} is no number for k = {wrong[0].streams}; choose another one."
        )
    if own_weight > ALONE:
        nobody = _option(
            Traffic(0, 0), 0.0, np.arange(users), system, model_bytes, worth, once, limits
        )
        if not nobody.affordable:
            raise _too_dear([nobody], limits, system.unit)
        reason = (
            f"no stream: users give themselves a weight of {own_weight:.2f} on average, so that "
            "nobody gains from anybody else's model; let everyone train alone (local), which "
            f"sends nothing and takes {nobody.round_time:.3g} {system.unit} a round."
        )
        return Plan((nobody, *options), nobody, system.unit, reason)
    within = [option for option in options if option.affordable]
    if not within:
        raise _too_dear(options, limits, system.unit)
    top = max(option.score for option in within)
    best = next(option for option in within if option.score >= top - slack)
    return Plan(tuple(options), best, system.unit, _reason(options, best, name, system.unit))


def _option(
    traffic: Traffic,
    silhouette: float,
    labels: Labels,
    system: System,
    model_bytes: float,
    worth: Worth,
    once: float,
    limits: Limits,
) -> Option:
    """What so many streams cost, and whether the limits allow them."""
    users = len(labels)
    time = system.round_time(traffic, users, labels)
    found = Option(
        streams=int(traffic.down),
        silhouette=silhouette,
        round_time=time,
        slowdown=time / once,
        down_bytes=traffic.down_bytes(model_bytes),
        up_bytes=traffic.up_bytes(model_bytes, users),
        joules=system.joules(traffic, users, labels),
        # A trade-off is one between numbers of streams: no stream has no part in it.
        score=float(worth(int(traffic.down), silhouette, time / once)) if traffic.down else 0.0,
        affordable=True,
        without_slowest=system.arrived(traffic, users, 1 - limits.leave_out, labels)
        if limits.leave_out
        else None,
    )
    return replace(found, affordable=limits.allow(found))


def _too_dear(options: list[Option], limits: Limits, unit: str) -> UcflError:
    """The error where nothing is within the limits: what the cheapest would cost."""
    counted = "without_slowest" if limits.leave_out else "round_time"
    fastest = min(options, key=lambda option: getattr(option, counted))
    streams = f"{fastest.streams} stream{'s' * (fastest.streams > 1)}"
    if limits.deadline is not None and getattr(fastest, counted) > limits.deadline:
        return UcflError(
            f"no number of streams meets the deadline of {limits.deadline:g} {unit}: the shortest "
            f"round, with {streams}, takes {getattr(fastest, counted):.3g} {unit}."
        )
    least = min(options, key=lambda option: option.joules)
    return UcflError(
        f"no number of streams is within the limits: the cheapest round, with {least.streams} "
        f"stream{'s' * (least.streams > 1)}, takes {least.round_time:.3g} {unit} and "
        f"{least.joules:.3g} J."
    )


def _reason(options: list[Option], best: Option, name: str, unit: str) -> str:
    said = f"{best.streams} stream{'s' * (best.streams > 1)}: {name} is highest there"
    if any(not option.affordable for option in options):
        said += f" among the {sum(o.affordable for o in options)} that the constraints allow"
    said += f" ({best.score:.2f})"
    higher = [o for o in options if o.affordable and o.score > best.score]
    if higher:
        said += ", but for a difference that is not worth more streams"
    slower = f"{best.slowdown:.3g} times"
    than_fedavg = "as long as" if slower == "1 times" else slower
    most, takes = options[-1], f"{best.round_time:.3g} {unit}"
    said += f"; a round takes {takes}, {than_fedavg} FedAvg's"
    would_take = f"{most.round_time:.3g} {unit}"
    if most.streams > best.streams and would_take != takes:
        said += f", where {most.streams} streams would take {would_take}"
    if best.silhouette <= 0 and best.streams == 1:
        said += "; no grouping of these users fits better than one"
    return said + "."
