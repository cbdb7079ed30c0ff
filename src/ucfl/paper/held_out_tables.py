"""The held-out set's tables, from stored cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ucfl.paper import held_out
from ucfl.paper.items import Form
from ucfl.paper.on_air import AIR_HEADERS
from ucfl.paper.reproduce import Measured
from ucfl.paper.rivals import air_first, best_others, margins, pairs, untouched_margins
from ucfl.paper.standings import (
    RULE,
    Results,
    beside_fedavg,
    found_groups,
    methods,
    paired,
    rand_index,
    results,
    rows,
    standing,
)
from ucfl.paper.tables import Shown, Table, diverged, or_dash, spread, without_cells
from ucfl.runs import Record

NEVER = "no"
#: What a table of accuracies is over.
SHARED = (
    "Mean ± deviation over seeds: in each federation, those that all the methods shown have. A "
    "field is empty where a method cannot be run: the oracle needs groups to be told."
)


def federations(form: Form) -> Table:
    """Who the users are, and which federations methods were developed on."""
    lines = []
    for name in held_out.FEDERATIONS:
        s = form.scenarios[name]
        labels = f"Dirichlet {s.alpha:g}" if s.split == "dirichlet" else s.split
        groups = str(s.groups) if s.groups > 1 else "none"
        users = "people" if s.split == "natural" else str(s.users)  # the data says how many
        setting = [users, groups, labels, str(s.rounds), f"{s.lr:g}", str(s.batch)]
        lines.append([name, s.description, *setting, _looked_at(name)])
    heads = ("federation", "what", "users", "groups", "labels", "rounds", "lr", "batch")
    return Table("Federations", (*heads, "developed on"), lines)


def accuracies(found: Results, who: str) -> Table:
    """The main methods on every federation, at the validation-chosen round."""
    names = methods(found, main=True)
    lines = [
        [federation, _looked_at(federation), *_spreads(each, names, who)]
        for federation, each in found.items()
    ]
    said = {"mean": "Mean over users", "worst": "The worst user"}[who]
    title = f"{said}: accuracy in % at the validation-chosen round, main methods"
    return Table(title, ("federation", "developed on", *names), lines, SHARED)


def every_method(found: Results, who: str) -> Table:
    """All methods that have cells, a row each."""
    every = methods(found)
    names = [name for name in every if any(each.get(name) for each in found.values())]
    columns = [_spreads(each, names, who) for each in found.values()]
    lines = [list(line) for line in zip(names, *columns, strict=True)]
    said = {"mean": "mean over users", "worst": "the worst user"}[who]
    lost = diverged(r for each in found.values() for name in names for r in each.get(name, ()))
    missing = without_cells([name for name in every if name not in names])
    note = " ".join(filter(None, [SHARED, missing, lost]))
    heads = ("method", *found)
    return Table(f"All methods: {said}", heads, lines or [["–"] * len(heads)], note)


def parts(found: Results) -> Table:
    """The layered method with its parts left out or told, each over the seeds that both have."""
    names = [held_out.LAYERED, *held_out.PARTS]
    lines = []
    for federation, each in found.items():
        own = each.get(held_out.LAYERED, ())
        lines.append([federation, *(_beside(own, each.get(name)) for name in names)])
    heads = ("federation", "layered", *held_out.PARTS.values())
    note = "With the seeds that both have; in brackets, the difference to the layered method."
    return Table("What each part is worth: mean over users in %", heads, lines, note)


def worth(found: Results) -> Table:
    """What a part of the layered method is worth, over federations and at the extremes.

    Beside it, FedPer, which it is likest to, and what its measure alone does for the paper's rule.
    """
    own, prototypes = held_out.LAYERED, held_out.PROTOTYPES
    pairs = [(said, name, own) for name, said in held_out.PARTS.items()]
    pairs += [("FedPer", "fedper", own)]
    pairs += [(held_out.PARTS[prototypes], prototypes, "user-centric")]
    lines = []
    for said, name, against in pairs:
        both = {
            federation: _paired(each.get(against, ()), each.get(name, ()))
            for federation, each in found.items()
        }
        changes = {place: pair[1] - pair[0] for place, pair in both.items() if pair is not None}
        mean = f"{np.mean(list(changes.values())):+.1f}" if changes else "–"
        ends = [f(changes, key=changes.__getitem__) for f in (min, max)] if changes else []
        extremes = [f"{changes[place]:+.1f} ({place})" for place in ends] or ["–", "–"]
        lines.append([said, against, str(len(changes)), mean, *extremes])
    heads = ("what", "against", "federations", "mean change", "least", "most")
    note = "Points of mean accuracy, on the seeds that both have."
    return Table("What each part is worth, over federations", heads, lines, note)


def _paired(own: Sequence[Record], other: Sequence[Record]) -> tuple[float, float] | None:
    """Both methods' means over the seeds that both have; None if they share none."""
    both = paired(own, other)
    if not len(both):
        return None
    first, second = both.mean(0)
    return float(first), float(second)


def _beside(own: Sequence[Record], other: Sequence[Record] | None) -> str:
    """A mean, and its difference to the method's on the same seeds; nothing where it cannot be."""
    if other is None:
        return ""
    if (both := _paired(own, other)) is None:
        return "–"
    first, second = both
    return f"{second:.1f}" + ("" if own is other else f" ({second - first:+.1f})")


def group_finding(found: Results) -> Table:
    """The number of groups by seed, and the mean adjusted Rand index with the true ones."""
    finders = [
        name
        for name in methods(found)
        if any(found_groups(r) is not None for each in found.values() for r in each.get(name, ()))
    ]
    lines = []
    for federation, each in found.items():
        true = held_out.FEDERATIONS[federation].scenario.groups
        cells = [_groups_in_words(each.get(name, ())) for name in finders]
        lines.append([federation, str(true) if true > 1 else "none", *cells])
    note = "k of each seed; in brackets, the mean adjusted Rand index with the true groups."
    return Table("Groups found", ("federation", "true groups", *finders), lines, note)


def average_ranks(found: Results, *, main: bool = False) -> Table:
    """Average ranks, best first: over all federations, and over either half of them."""
    title = f"Average ranks, {'main' if main else 'all'} methods"
    heads = ("method", "average rank", "developed on", "not developed on")
    if (made := standing(found, main=main)) is None:
        return Table(title, heads, [["–"] * len(heads)])
    block = made.block
    developed = np.array([held_out.FEDERATIONS[name].developed for name in block.federations])
    table = dict(zip(block.methods, block.ranks.T, strict=True))
    lines = [
        [name, f"{rank:.2f}", *(_average(table[name][half]) for half in (developed, ~developed))]
        for name, rank in block.average.items()
    ]
    seeds = sorted({len(each) for each in block.seeds.values()})
    note = f"Methods: {len(block.methods)}; federations: {len(block.federations)}; seeds of each: "
    note += f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))}. Average ranks differ "
    note += f"where they are {made.difference:.2f} apart or more (Nemenyi, 5%)."
    if made.test is not None:
        note += f" Friedman: F = {made.test.f:.2f}, p = {made.test.p:.2g}."
    reasons: dict[str, list[str]] = {}
    for name, why in block.left_out.items():
        reasons.setdefault(why, []).append(name)
    left_out = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    note += f" Not ranked: {'; '.join(left_out)}." if left_out else ""
    return Table(title, heads, lines, note)


def air(found: Results) -> Table:
    """The main methods' time to the accuracy that FedAvg ends with, in the paper's systems."""
    made = beside_fedavg(found, main=True)
    lines = [[name, *one.words()] for name, each in made.items() for one in each]
    heads = ("federation", *AIR_HEADERS)
    title = "Time in T_dl to FedAvg's final mean accuracy, main methods"
    return Table(title, heads, lines or [["–"] * len(heads)])


#: Every table of results by its name.
HELD_OUT: dict[str, Callable[[Results], Table]] = {
    "mean": lambda found: accuracies(found, "mean"),
    "worst": lambda found: accuracies(found, "worst"),
    "margins": margins,
    "margins-untouched": untouched_margins,
    "best-others": best_others,
    "pairs": pairs,
    "ranks-main": lambda found: average_ranks(found, main=True),
    "ranks": average_ranks,
    "groups": group_finding,
    "parts": parts,
    "worth": worth,
    "air-first": air_first,
    "air": air,
    "all-mean": lambda found: every_method(found, "mean"),
    "all-worst": lambda found: every_method(found, "worst"),
}


def held_out_shown(form: Form, measured: Measured) -> Shown:
    """All tables, for people and for programs."""
    found = results(form, measured)
    standings = {"main": standing(found, main=True), "all": standing(found)}
    return Shown(
        [
            federations(form),
            *(table(found) for table in HELD_OUT.values()),
            Table("How methods are ranked", ("rule",), [[line] for line in RULE]),
        ],
        {
            "rows": rows(form, measured),
            "ranks": {name: made and made.to_json() for name, made in standings.items()},
            "on_air": {
                name: [one.to_json() for one in each]
                for name, each in beside_fedavg(found, main=True).items()
            },
        },
    )


def _looked_at(federation: str) -> str:
    first, last = held_out.DEVELOPMENT_SEEDS[0], held_out.DEVELOPMENT_SEEDS[-1]
    return f"seeds {first}–{last}" if held_out.FEDERATIONS[federation].developed else NEVER


def _spreads(each: Mapping[str, Sequence[Record]], names: Sequence[str], who: str) -> list[str]:
    """In words: a dash where nothing is measured yet, nothing where a method cannot serve.

    Over the seeds that all of them have that have any: seeds draw other users.
    """
    there = [{r.seed for r in each[name]} for name in names if each.get(name)]
    seeds = set.intersection(*there) if there else set()
    shared = {name: [r for r in each[name] if r.seed in seeds] for name in names if name in each}
    return [or_dash(spread(shared[name], who, "best")) if name in each else "" for name in names]


def _groups_in_words(records: Sequence[Record]) -> str:
    counted = [
        (len(np.unique(g)), rand_index(r)) for r in records if (g := found_groups(r)) is not None
    ]
    if not counted:
        return "–"
    indices = [index for _, index in counted if index is not None]
    mean = f" ({np.mean(indices):.2f})" if indices else ""
    return " ".join(str(k) for k, _ in counted) + mean


def _average(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.2f}" if len(values) else "–"
