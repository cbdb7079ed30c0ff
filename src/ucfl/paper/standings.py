"""What the held-out set's stored cells say: its CSV, the groups found, and who ranks where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.paper import held_out, ranks
from ucfl.paper.cells import Store, csv_text
from ucfl.paper.items import ITEMS, Form
from ucfl.paper.on_air import OnAir, on_air
from ucfl.paper.ranks import Block, Friedman
from ucfl.paper.reproduce import Measured, survey
from ucfl.runs import Record

COLUMNS = (
    "federation", "algorithm", "seed", "mean_best", "worst_best", "mean_final", "k", "rand_index",
    "models_down",
)  # fmt: skip
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


def paired(
    own: Sequence[Record], other: Sequence[Record], who: str = "mean"
) -> NDArray[np.float64]:
    """[seeds, 2]: both methods' values on the seeds that both have, and where both have one."""
    mine = {r.seed: r.value(who, "best") for r in own}
    both = [(mine[r.seed], r.value(who, "best")) for r in other if r.seed in mine]
    values = np.array(both, dtype=np.float64).reshape(-1, 2)
    return values[np.isfinite(values).all(1)]


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


def beside_fedavg(found: Results, *, main: bool = False) -> dict[str, list[OnAir]]:
    """How long methods need on air to what FedAvg ends with, by federation."""
    names = methods(found, main=main)
    return {
        federation: on_air({name: each[name] for name in names if name in each})
        for federation, each in found.items()
    }
