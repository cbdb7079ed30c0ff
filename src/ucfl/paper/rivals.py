"""The layered method beside every other one: where it leads, where not, and who is first on air."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ucfl.paper.held_out import LAYERED, TOLD, UNTOUCHED_SEEDS
from ucfl.paper.on_air import OnAir
from ucfl.paper.ranks import holm, signed_rank
from ucfl.paper.standings import Results, beside_fedavg, methods, paired
from ucfl.paper.tables import Spread, Table
from ucfl.runs import Record
from ucfl.wireless import SYSTEMS

#: With whom the method must keep up on every federation.
REFERENCES = (TOLD, "fedavg", "local")
#: Who needs at most so many times the time of the first has come in with it.
WITH_THE_FIRST = 1.1


def margins(found: Results) -> Table:
    """How far the layered method is above those that it must not be under."""
    columns = [(who, name) for who in ("mean", "worst") for name in REFERENCES]
    lines = []
    for federation, each in found.items():
        own = each.get(LAYERED, ())
        lines.append([federation, *(_margin(own, each.get(name), who) for who, name in columns)])
    said = {"mean": "mean", "worst": "worst user"}
    heads = ("federation", *(f"{said[who]}, over {name}" for who, name in columns))
    note = "Points, each on the seeds that both have. Only federations with groups have an oracle."
    return Table("The layered method over those that it must not be under", heads, lines, note)


def untouched_margins(found: Results) -> Table:
    """The same on the seeds of which nothing was seen before the method had its last form."""
    seeds = UNTOUCHED_SEEDS
    kept = {
        federation: {name: [r for r in of if r.seed in seeds] for name, of in each.items()}
        for federation, each in found.items()
    }
    table = margins(kept)
    return replace(table, title=f"{table.title}, seeds {seeds[0]} to {seeds[-1]} alone")


def _margin(own: Sequence[Record], other: Sequence[Record] | None, who: str) -> str:
    if other is None:
        return ""
    both = paired(own, other, who)
    return f"{(both[:, 0] - both[:, 1]).mean():+.1f}" if len(both) else "–"


def best_others(found: Results) -> Table:
    """The best other method of each federation, and how many are ahead of the layered one.

    The oracle is told what others must find, and is none of them.
    """
    names = [name for name in methods(found) if name not in (TOLD, LAYERED)]
    lines = []
    for federation, each in found.items():
        pairs = {name: paired(each.get(LAYERED, ()), each.get(name, ())) for name in names}
        ahead = {
            name: Spread.over((both[:, 1] - both[:, 0]).tolist())
            for name, both in pairs.items()
            if len(both)
        }
        if not ahead:
            lines.append([federation, *["–"] * 6])
            continue
        best = max(ahead, key=lambda name: ahead[name].mean)
        both = pairs[best]
        more = sum(difference.mean > 0 for difference in ahead.values())
        lines.append(
            [
                federation,
                f"{both[:, 0].mean():.1f}",
                best,
                f"{both[:, 1].mean():.1f}",
                _difference(ahead[best]),
                str(ahead[best].seeds),
                f"{more} of {len(ahead)}",
            ]
        )
    note = (
        "Mean over users in %, on the seeds that the two have; ± is the deviation of the "
        "difference over these seeds. *Ahead* counts the methods with a higher mean."
    )
    heads = ("federation", "layered", "best other method", "its mean", "difference", "seeds")
    return Table("The best other method of each federation", (*heads, "ahead"), lines, note)


def _difference(spread: Spread) -> str:
    """With its sign; one seed has no deviation."""
    return f"{'+' * (spread.mean >= 0)}{spread}"


def pairs(found: Results) -> Table:
    """The layered method against each other one over the federations, and the tests of that.

    The oracle is told what others must find: its test is made apart from those of the others.
    """
    names = [name for name in methods(found) if name != LAYERED]
    gains = {name: _gains(found, name) for name in names}
    gains = {name: each for name, each in gains.items() if len(each)}
    p_values = {name: signed_rank(each) for name, each in gains.items()}
    told = {name: p_values.pop(name) for name in [TOLD] if name in p_values}
    tested = told | holm(p_values)
    lines = []
    for name in sorted(gains, key=lambda name: gains[name].mean()):
        each = gains[name]
        counts = (each > 0).sum(), (each == 0).sum(), (each < 0).sum()
        lines.append([name, *map(str, counts), f"{each.mean():+.1f}", f"{tested[name]:.2g}"])
    heads = ("method", "layered is above", "equal", "below", "mean difference", "p")
    note = (
        "Federations, and points of mean accuracy in favour of the layered method, on the seeds "
        "that the two have. p: Wilcoxon's signed-rank test over federations, two-sided, by Holm's "
        "procedure for all rows together; the oracle's, which is told the groups, for itself."
    )
    return Table(
        "The layered method against each other one", heads, lines or [["–"] * len(heads)], note
    )


def _gains(found: Results, name: str) -> NDArray[np.float64]:
    """By how many points the layered method is above another, on each federation of both."""
    both = [paired(each.get(LAYERED, ()), each.get(name, ())) for each in found.values()]
    means = [(each[:, 0] - each[:, 1]).mean() for each in both if len(each)]
    return np.array(means, dtype=np.float64)


def air_first(found: Results) -> Table:
    """The layered method's time to FedAvg's final accuracy, and who is there first."""
    made = {federation: each for federation, each in beside_fedavg(found).items() if each}
    lines, first = [], dict.fromkeys(SYSTEMS, 0)
    for federation, each in made.items():
        times = {one.algorithm: one for one in each if one.algorithm != TOLD}
        if LAYERED not in times:
            continue
        cells = []
        for system in SYSTEMS:
            own, (best, name) = times[LAYERED].times[system], _first(list(times.values()), system)
            first[system] += math.isfinite(own) and own <= WITH_THE_FIRST * best
            cells += [_time(own), f"{_time(best)} ({name})"]
        lines.append([federation, f"{times[LAYERED].target:.1f}", *cells])
    heads = [f"{system}: {what}" for system in SYSTEMS for what in ("layered", "first")]
    counts = "; ".join(f"{count} in {system}" for system, count in first.items())
    note = (
        "Time in T_dl, on the seeds that all methods have. The layered method is first, or within "
        f"10% of the first, on this many of {len(lines)} federations: {counts}."
    )
    width = 2 + len(heads)
    return Table(
        "Time to FedAvg's final mean accuracy, beside all methods",
        ("federation", "to %", *heads),
        lines or [["–"] * width],
        note if lines else "",
    )


def _first(each: Sequence[OnAir], system: str) -> tuple[float, str]:
    """The shortest time, and whose it is."""
    return min((one.times[system], one.algorithm) for one in each)


def _time(time: float) -> str:
    return "never" if math.isinf(time) else f"{time:.0f}"
