"""The layered method beside every other one: where it leads, where not, and who is first on air."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ucfl.paper.held_out import LAYERED, TOLD
from ucfl.paper.on_air import OnAir
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
            lines.append([federation, *["–"] * 5])
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
                f"{ahead[best].mean:+.1f} ± {ahead[best].std:.1f}",
                f"{more} of {len(ahead)}",
            ]
        )
    heads = ("federation", "layered", "best other method", "its mean", "difference", "ahead")
    note = (
        "Mean over users in %, on the seeds that the two have; ± is the deviation of the "
        "difference over these seeds. *Ahead* counts the methods with a higher mean."
    )
    return Table("The best other method of each federation", heads, lines, note)


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
