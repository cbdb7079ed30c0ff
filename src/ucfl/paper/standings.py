"""The held-out set's tables and its CSV, from stored cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.paper import held_out, ranks
from ucfl.paper.cells import Store, csv_text
from ucfl.paper.items import ITEMS, Form
from ucfl.paper.on_air import AIR_HEADERS, OnAir, on_air
from ucfl.paper.ranks import Block, Friedman
from ucfl.paper.reproduce import Measured, survey
from ucfl.paper.tables import Shown, Table, or_dash, spread, without_cells
from ucfl.runs import Record

COLUMNS = (
    "federation", "algorithm", "seed", "mean_best", "worst_best", "mean_final", "k", "rand_index",
    "models_down",
)  # fmt: skip
NEVER = "no"
#: The rule that the ranks follow, for every page that shows them.
RULE = (
    "On each federation, methods are ranked by the mean over seeds of the users' mean accuracy at "
    "the validation-chosen round; equal values share their ranks.",
    "A federation counts where every main method but the oracle has a cell, and a method where it "
    "has one on all of these: an average over other federations is no rank among the rest.",
    "The means are over the seeds that all ranked methods have on the federation, since seeds draw "
    "other users.",
    "The oracle is told the groups, and needs some: it is shown with the others and never ranked.",
)

#: What a table of accuracies is over.
SHARED = "Each federation over the seeds that all methods with cells there have."

#: Results by federation and method, in order of their seeds.
Results = Mapping[str, Mapping[str, Sequence[Record]]]


def results(form: Form, measured: Measured) -> dict[str, dict[str, Sequence[Record]]]:
    """Every federation and method of the set, but for methods that cannot serve a federation."""
    names = {scenario.name: name for name, scenario in form.scenarios.items()}
    found: dict[str, dict[str, Sequence[Record]]] = {}
    for entry in ITEMS["held-out"].entries(form):
        each = found.setdefault(names[entry.scenario.name], {})
        each[entry.algorithm] = measured.get(entry, ())
    return found


def methods(found: Results, *, main: bool = False) -> list[str]:
    """All of them, or the main ones; what is a part of a method is none."""
    every = dict.fromkeys(name for each in found.values() for name in each)
    chosen = held_out.MAIN if main else [name for name in every if name not in held_out.PARTS]
    return [name for name in every if name in chosen]


def found_groups(record: Record) -> NDArray[np.int64] | None:
    """Each user's group, where a method found some in the part that it personalises."""
    if record.algorithm.name == held_out.TOLD:
        return None
    learnt, heard = record.collaboration, record.audience
    if learnt is not None and learnt.labels is not None:
        return learnt.labels.numpy().astype(np.int64)
    if heard is None:
        return None
    _, labels = max(heard.parts, key=lambda part: len(np.unique(part[1])))
    return labels


def rand_index(record: Record) -> float | None:
    """How well the found groups are the true ones: 1 if they are, about 0 if by chance."""
    from sklearn.metrics import adjusted_rand_score  # takes seconds to import

    found, true = found_groups(record), record.population.groups
    return None if found is None or true is None else float(adjusted_rand_score(true, found))


def row(record: Record) -> dict[str, Any]:
    """A cell's row of ``held-out.csv``."""
    groups, agreement = found_groups(record), rand_index(record)
    values = [
        record.value(*key) for key in (("mean", "best"), ("worst", "best"), ("mean", "final"))
    ]
    cells = [
        record.scenario.name,
        record.label,
        record.seed,
        *(f"{value:.3f}" for value in values),
        "" if groups is None else len(np.unique(groups)),
        "" if agreement is None else f"{agreement:.4f}",
        f"{record.traffic[:, 0].mean():.4g}",
    ]
    return dict(zip(COLUMNS, cells, strict=True))


def rows(form: Form, measured: Measured) -> list[dict[str, Any]]:
    """A row per cell: federation by federation, method by method, seed by seed."""
    found = results(form, measured)
    return [row(r) for each in found.values() for records in each.values() for r in records]


def held_out_csv(form: Form, store: Store) -> str:
    """The text of ``held-out.csv``: all stored cells of the reported seeds."""
    cells = ITEMS["held-out"].cells(form)
    return csv_text(rows(form, survey(cells, store, "cpu").measured), COLUMNS)


@dataclass(frozen=True, eq=False)
class Standing:
    """Average ranks over the federations of a block, and whether they say anything."""

    block: Block
    difference: float
    test: Friedman | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "average": self.block.average,
            "federations": list(self.block.federations),
            "seeds": {name: list(seeds) for name, seeds in self.block.seeds.items()},
            "critical_difference": self.difference,
            "friedman": None if self.test is None else self.test.to_json(),
            "left_out": dict(self.block.left_out),
        }


def standing(found: Results, *, main: bool = False) -> Standing | None:
    """The main methods or all, by :data:`RULE`; None where there is nothing to compare yet."""
    scores: dict[str, dict[str, dict[int, float]]] = {
        name: {
            federation: {r.seed: r.value("mean", "best") for r in each[name]}
            for federation, each in found.items()
            if each.get(name)
        }
        for name in methods(found, main=main)
        if name != held_out.TOLD
    }
    required = [name for name in methods(found, main=True) if name != held_out.TOLD]
    if (block := ranks.block(scores, required)) is None:
        return None
    n, k = block.values.shape
    test = ranks.friedman(block.ranks) if n > 1 and k > 2 else None
    return Standing(block, ranks.critical_difference(k, n), test)


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
    note = " ".join(filter(None, [SHARED, without_cells([n for n in every if n not in names])]))
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
    mine = {r.seed: r.value("mean", "best") for r in own}
    both = [(mine[r.seed], r.value("mean", "best")) for r in other if r.seed in mine]
    if not both:
        return None
    first, second = np.mean(both, axis=0)
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
    made = _on_air(found)
    lines = [[name, *one.words()] for name, each in made.items() for one in each]
    heads = ("federation", *AIR_HEADERS)
    title = "Time in T_dl to FedAvg's final mean accuracy, main methods"
    return Table(title, heads, lines or [["–"] * len(heads)])


#: Every table of results by its name.
HELD_OUT: dict[str, Callable[[Results], Table]] = {
    "mean": lambda found: accuracies(found, "mean"),
    "worst": lambda found: accuracies(found, "worst"),
    "ranks-main": lambda found: average_ranks(found, main=True),
    "ranks": average_ranks,
    "groups": group_finding,
    "parts": parts,
    "worth": worth,
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
                name: [one.to_json() for one in each] for name, each in _on_air(found).items()
            },
        },
    )


def _on_air(found: Results) -> dict[str, list[OnAir]]:
    names = methods(found, main=True)
    return {
        federation: on_air({name: each[name] for name in names if name in each})
        for federation, each in found.items()
    }


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
