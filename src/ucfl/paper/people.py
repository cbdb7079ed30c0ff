"""Natural users from stored cells: every method, newcomers, and whether personalisation pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ucfl.paper import natural
from ucfl.paper.cells import Store, csv_text
from ucfl.paper.items import ITEMS, Form
from ucfl.paper.reproduce import Measured, survey
from ucfl.paper.standings import paired
from ucfl.paper.tables import Shown, Spread, Table, diverged, or_dash, spread, without_cells
from ucfl.runs import Record
from ucfl.runs.paired import ERROR_RATE, SEEDS_FOR_A_TEST, t_test

COLUMNS = (
    "federation", "algorithm", "seed", "tested_model", "rounds", "mean_best", "worst_best",
    "newcomers_before", "newcomers_after",
)  # fmt: skip
HEADERS = (
    "method", "tested model", "seeds", "mean", "worst user", "newcomers", "newcomers, tuned",
)  # fmt: skip
#: What one model for all can do, and what each user can do alone.
COMMON, ALONE = ("fedavg", "fedprox", "scaffold"), "local"
NOT_ENOUGH = "Not enough cells yet to say whether personalisation pays."


@dataclass(frozen=True)
class Served:
    """A method on a federation of natural users, over the seeds that are there."""

    method: str
    tested_model: str
    seeds: int
    mean: Spread | None
    worst: Spread | None
    before: Spread | None
    after: Spread | None


def served(name: str, form: Form, measured: Measured) -> list[Served]:
    """Every method that applies, the best one first, those without cells last."""
    rows = [
        _served(method, measured.get(form.entry(name, method), ()))
        for method in natural.methods(natural.SCENARIOS[name])
    ]
    return sorted(rows, key=lambda row: -row.mean.mean if row.mean else 1.0)


def _served(method: str, results: Sequence[Record]) -> Served:
    come = {
        when: [r.newcomers[when]["mean"] for r in results if r.newcomers is not None]
        for when in ("before", "after")
    }
    return Served(
        method,
        results[0].algorithm.tested_model if results else "",
        len(results),
        spread(results, "mean", "best"),
        spread(results, "worst", "best"),
        Spread.over(come["before"]) if come["before"] else None,
        Spread.over(come["after"]) if come["after"] else None,
    )


def table(name: str, form: Form, measured: Measured) -> Table:
    """One federation: the methods that have cells."""
    rows = served(name, form, measured)
    body = [
        [row.method, row.tested_model, str(row.seeds)]
        + [or_dash(value) for value in (row.mean, row.worst, row.before, row.after)]
        for row in rows
        if row.seeds
    ]
    note = verdict(name, form, measured)
    if missing := without_cells([row.method for row in rows if not row.seeds]):
        note += f" {missing}"
    cells = (measured.get(form.entry(name, row.method), ()) for row in rows)
    if lost := diverged(record for each in cells for record in each):
        note += f" {lost}"
    rounds = form.scenarios[name].rounds
    title = f"{form.scenarios[name].name}, {rounds} rounds"
    return Table(title, HEADERS, body or [["–"] * len(HEADERS)], note)


def verdict(name: str, form: Form, measured: Measured) -> str:
    """Whether personalisation pays, in a sentence, over the seeds that all methods have.

    That is, all that have cells. The best personalised method and the best model for all are chosen
    by validation accuracy, and compared by test accuracy, seed by seed: the best of twenty methods
    on test data would be ahead by chance alone.
    """
    entries = [form.entry(name, method) for method in natural.methods(natural.SCENARIOS[name])]
    there = {entry.algorithm: measured[entry] for entry in entries if measured.get(entry)}
    seeds = [{record.seed for record in each} for each in there.values()]
    of_all = set.intersection(*seeds) if seeds else set()
    if len(of_all) < SEEDS_FOR_A_TEST:
        return NOT_ENOUGH
    alike = {method: [r for r in each if r.seed in of_all] for method, each in there.items()}
    common = [method for method in alike if method in COMMON]
    personal = [method for method in alike if method not in (*COMMON, ALONE)]
    if not common or not personal or ALONE not in alike:
        return NOT_ENOUGH
    shared, best = (max(names, key=lambda m: _chosen_by(alike[m])) for names in (common, personal))
    gain, p = _gain(alike[best], alike[shared])
    below = [method for method in personal if _gain(alike[method], alike[shared])[0] < 0]
    pays = (
        "Whether personalisation pays is not shown here"
        if p >= ERROR_RATE
        else f"Personalisation {'pays' if gain > 0 else 'does not pay'} here"
    )
    return (
        f"{pays}. Chosen by validation accuracy, the best personalised method is {best} "
        f"({spread(alike[best], 'mean', 'best')}). It is {_against(alike[best], alike[shared])} "
        f"the best model for all, {shared}, and {_against(alike[best], alike[ALONE])} local "
        f"training (paired t-tests over {len(of_all)} seeds). {len(below)} of {len(personal)} "
        f"personalised methods are below the model for all"
        f"{': ' + ', '.join(below) if below else ''}."
    )


def _chosen_by(results: Sequence[Record]) -> float:
    """Validation accuracy at the chosen round, over seeds."""
    return float(np.mean([r.validation[r.best_round] for r in results]))


def _gain(own: Sequence[Record], other: Sequence[Record]) -> tuple[float, float]:
    """By how much one method's test accuracy is above another's, and the p-value of that."""
    both = paired(own, other)
    differences = both[:, 0] - both[:, 1]
    return float(differences.mean()), t_test(differences)


def _against(own: Sequence[Record], other: Sequence[Record]) -> str:
    gain, p = _gain(own, other)
    where = "above" if gain > 0 else "below"
    return f"{abs(gain):.1f} points {where} (p = {p:.2g})"


def natural_shown(form: Form, measured: Measured) -> Shown:
    """All federations."""
    values = {
        name: [asdict(row) for row in served(name, form, measured)] for name in natural.SCENARIOS
    }
    return Shown([table(name, form, measured) for name in natural.SCENARIOS], values)


def natural_csv(form: Form, store: Store) -> str:
    """The text of ``natural.csv``: a row per stored cell."""
    measured = survey(ITEMS["natural"].cells(form), store, "cpu").measured
    rows = [_as_csv(record) for each in measured.values() for record in each]
    rows.sort(key=lambda row: (row["federation"], row["algorithm"], row["seed"]))
    return csv_text(rows, COLUMNS)


def _as_csv(record: Record) -> dict[str, Any]:
    come = record.newcomers
    values = (
        record.scenario.name,
        record.label,
        record.seed,
        record.algorithm.tested_model,
        record.rounds,
        f"{record.value('mean', 'best'):.3f}",
        f"{record.value('worst', 'best'):.3f}",
        *("" if come is None else f"{come[when]['mean']:.3f}" for when in ("before", "after")),
    )
    return dict(zip(COLUMNS, values, strict=True))
