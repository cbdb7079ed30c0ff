"""Others' tables from stored cells: measured beside printed, ranks, and the CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ucfl.paper.cells import Store, csv_text
from ucfl.paper.items import ITEMS, Form
from ucfl.paper.printed import Printed
from ucfl.paper.reproduce import Measured, survey
from ucfl.paper.tables import Shown, Spread, Table, or_dash, plus_minus
from ucfl.paper.yardsticks import YARDSTICKS, Yardstick
from ucfl.runs import Record
from ucfl.runs.record import Floats

COLUMNS = ("yardstick", "method", "printed", "measured", "std", "seeds", "rounds", "lr", "highest")


@dataclass(frozen=True)
class Compared:
    """A method of a yardstick: at the rate that validation chooses, beside what is printed.

    The rate is chosen over the seeds that all rates have; without one, nothing is measured.
    ``highest`` is at the best test round of every seed, which some tables print; None: no cells.
    """

    yardstick: str
    method: str
    printed: Printed | None
    measured: Spread | None
    highest: Spread | None
    rate: float | None
    seeds: int
    rounds: int


def means(record: Record, *, weighted: bool) -> Floats:
    """[T + 1]: the mean over users on test data; ``weighted`` by how much of it each user has."""
    sizes, values = record.population.test_sizes, record.by_user.get("test")
    if not weighted:
        return record.mean
    if sizes is None or values is None:
        raise ValueError("the cell has no single users to weigh")
    shares = np.asarray(sizes, dtype=np.float64)
    found: Floats = np.nan_to_num(values) @ shares / shares.sum()
    return found


def compare(name: str, yardstick: Yardstick, form: Form, measured: Measured) -> list[Compared]:
    """Every method of a yardstick."""
    return [_row(name, yardstick, form, measured, method) for method in yardstick.printed]


def _row(name: str, yardstick: Yardstick, form: Form, measured: Measured, method: str) -> Compared:
    found: dict[float, Sequence[Record]] = {}
    for rate, scenario in yardstick.scenarios.items():
        entry = form.entry(scenario.name, method)
        if measured.get(entry):
            found[rate] = measured[entry]
    real = not form.name  # nothing is printed of stand-ins
    printed = yardstick.printed[method] if real else None
    rounds = form.entry(next(iter(yardstick.scenarios.values())).name, method).scenario.rounds
    # Seeds draw other users: a rate is chosen over those that all rates have.
    seeds = [{record.seed for record in each} for each in found.values()]
    shared = set.intersection(*seeds) if seeds else set()
    if not shared:
        return Compared(name, method, printed, None, None, None, 0, rounds)
    rate = max(found, key=lambda rate: _validation(r for r in found[rate] if r.seed in shared))
    curves = [means(record, weighted=yardstick.weighted) for record in found[rate]]
    chosen = [
        float(curve[record.best_round]) for curve, record in zip(curves, found[rate], strict=True)
    ]
    highest = Spread.over([float(np.nanmax(curve)) for curve in curves])
    return Compared(name, method, printed, Spread.over(chosen), highest, rate, len(curves), rounds)


def _validation(results: Iterable[Record]) -> float:
    return float(np.mean([record.validation[record.best_round] for record in results]))


def ranks(rows: Sequence[Compared]) -> Mapping[str, tuple[int, int]]:
    """Places by what is printed and by what is measured, of the methods that have both."""
    both = {
        row.method: (row.printed.mean, row.measured.mean)
        for row in rows
        if row.printed and row.measured
    }

    def place(method: str, which: int) -> int:
        return 1 + sum(values[which] > both[method][which] for values in both.values())

    return {method: (place(method, 0), place(method, 1)) for method in both}


#: Points from a printed value that count as the same.
CLOSE = 1.5
HEADERS = (
    "method", "rounds", "seeds", "lr", "measured", "highest test round", "printed", "rank",
    "printed rank",
)  # fmt: skip


def table(name: str, form: Form, measured: Measured) -> Table:
    """A yardstick, and how far its methods lie from what is printed."""
    yardstick = YARDSTICKS[name]
    rows = compare(name, yardstick, form, measured)
    places = ranks(rows)
    body = []
    for row in rows:
        printed, own = places.get(row.method, ("", ""))
        print_ = "–" if row.printed is None else plus_minus(row.printed.mean, row.printed.std)
        rate = "–" if row.rate is None else f"{row.rate:g}"
        values = [or_dash(row.measured), or_dash(row.highest), print_, str(own), str(printed)]
        body.append([row.method, str(row.rounds), str(row.seeds), rate, *values])
    both = [(row.printed, row.measured) for row in rows if row.printed and row.measured]
    near = sum(abs(found.mean - printed.mean) <= CLOSE for printed, found in both)
    printed_count = sum(row.printed is not None for row in rows)
    note = f"{near} of {printed_count} printed values are within {CLOSE:g} points"
    note += f"; {printed_count - len(both)} are not measured yet." if form.name == "" else "."
    return Table(yardstick.title, HEADERS, body, note if printed_count else "")


def yardsticks_shown(form: Form, measured: Measured) -> Shown:
    """All yardsticks."""
    rows = [row for name, each in YARDSTICKS.items() for row in compare(name, each, form, measured)]
    return Shown([table(name, form, measured) for name in YARDSTICKS], [asdict(r) for r in rows])


def yardsticks_csv(form: Form, store: Store) -> str:
    """The text of ``yardsticks.csv``: a row per method, empty where nothing is measured yet."""
    measured = survey(ITEMS["yardsticks"].cells(form), store, "cpu").measured
    rows = [row for name, each in YARDSTICKS.items() for row in compare(name, each, form, measured)]
    return csv_text([_as_csv(row) for row in rows], COLUMNS)


def _as_csv(row: Compared) -> dict[str, Any]:
    there = row.measured is not None and row.highest is not None
    values = (
        row.yardstick,
        row.method,
        "" if row.printed is None else row.printed.mean,
        f"{row.measured.mean:.3f}" if row.measured else "",
        f"{row.measured.std:.3f}" if row.measured else "",
        row.seeds,
        row.rounds,
        "" if row.rate is None else f"{row.rate:g}",
        f"{row.highest.mean:.3f}" if there and row.highest else "",
    )
    return dict(zip(COLUMNS, values, strict=True))
