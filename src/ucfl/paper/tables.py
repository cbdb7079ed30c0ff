"""Tables of measured cells; of the paper's, beside what is printed, with the number of seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ucfl.paper.items import ITEMS, OURS, Form
from ucfl.paper.printed import METHODS, SCENARIOS, TABLE_1, TABLE_2, Printed
from ucfl.paper.reproduce import Measured
from ucfl.runs import Record
from ucfl.runs.folder import deviation

#: Why `best` stands beside the printed value, for every page that shows it.
COMPARED = (
    "best is compared with the printed value: the paper reports the accuracy that a method attains "
    "(“the maximum validation accuracy attained”, sec. V-F), so a round is chosen, here by the "
    "validation half of the held-out data, and the test half of that round is reported; final is "
    "the last round. ± is the deviation over seeds; the paper does not say over what its own is."
)


#: Points, on either side of a printed value, that count as the same.
CLOSE = 2.0
#: What version 0.1 did with a last batch that is not full.
KEPT = "keep"


@dataclass(frozen=True)
class Table:
    """A table as words, and what a reader must know of it."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """The table with its note, without its title."""
        return "\n\n".join(filter(None, [markdown(self.headers, self.rows), self.note]))


@dataclass(frozen=True)
class Shown:
    """What an item answers with: its tables, and the same as plain values for programs."""

    tables: Sequence[Table]
    values: Any


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation over seeds, in percent; one seed has no deviation (0 here)."""

    mean: float
    std: float
    seeds: int

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Of one value per seed."""
        return cls(float(np.mean(values)), float(deviation(values)), len(values))

    def __str__(self) -> str:
        return plus_minus(self.mean, self.std if self.seeds > 1 else None)


@dataclass(frozen=True)
class Row:
    """One entry of a table: what was measured, what is printed, and whether they agree.

    Where another scenario stands for the paper's, as in a reduced form, nothing is printed.
    ``last_batch`` is what its cells did with one that is not full; version 0.1 kept it.
    """

    scenario: str
    title: str
    algorithm: str
    method: str
    tested_model: str
    rounds: int
    seeds: tuple[int, ...]
    last_batch: str
    best: Spread | None
    final: Spread | None
    printed: Printed | None

    @property
    def verdict(self) -> str:
        """``within`` or ``better`` than the printed value's tolerance, or ``miss``."""
        if self.best is None or self.printed is None:
            return ""
        above, tolerance = self.best.mean - self.printed.mean, self.printed.tolerance
        return "better" if above > tolerance else "within" if above >= -tolerance else "miss"

    @property
    def is_close(self) -> bool:
        """Whether it is at most ``CLOSE`` points from the printed value, on either side."""
        if self.best is None or self.printed is None:
            return False
        return abs(self.best.mean - self.printed.mean) <= CLOSE


def table1(form: Form, measured: Measured) -> list[Row]:
    """Mean accuracy over users; also of CFL, FedFomo and FedProx's aggregated model."""
    return _rows("table1", "mean", TABLE_1, form, measured)


def table2(form: Form, measured: Measured) -> list[Row]:
    """The worst user's accuracy."""
    return _rows("table2", "worst", TABLE_2, form, measured)


def beyond(form: Form, measured: Measured) -> list[Row]:
    """The adaptive method beside the oracle, the paper's rule and every fixed width."""
    worst = [
        replace(row, method=f"{row.method}, worst user")
        for row in _rows("beyond", "worst", {}, form, measured)
    ]
    return _rows("beyond", "mean", {}, form, measured) + worst


TABLES: dict[str, Callable[[Form, Measured], list[Row]]] = {
    "table1": table1,
    "table2": table2,
    "beyond": beyond,
}


def _rows(
    item: str,
    who: str,
    printed: Mapping[str, Mapping[str, Printed]],
    form: Form,
    measured: Measured,
) -> list[Row]:
    names = {scenario.name: name for name, scenario in form.scenarios.items()}
    rows = []
    for entry in ITEMS[item].entries(form):
        results = measured.get(entry, ())
        name = names[entry.scenario.name]
        rows.append(
            Row(
                name,
                form.title(name),
                entry.algorithm,
                (METHODS | OURS)[entry.algorithm],
                results[0].algorithm.tested_model if results else "",
                entry.scenario.rounds,
                tuple(record.seed for record in results),
                " and ".join(sorted({_last_batch(record) for record in results})),
                spread(results, who, "best"),
                spread(results, who, "final"),
                printed.get(name, {}).get(entry.algorithm) if entry.scenario.name == name else None,
            )
        )
    return sorted(rows, key=lambda row: list(SCENARIOS).index(row.scenario))


def _last_batch(record: Record) -> str:
    return KEPT if record.origin.kept_last_batch else record.scenario.last_batch


def spread(results: Sequence[Record], who: str, when: str) -> Spread | None:
    """Over the seeds that are there."""
    return Spread.over([r.value(who, when) for r in results]) if results else None


def shown(item: str, form: Form, measured: Measured) -> Shown:
    """One of ``TABLES``, for people and for programs."""
    rows = TABLES[item](form, measured)
    note = agreement(rows) if any(row.printed for row in rows) else ""
    return Shown([Table(ITEMS[item].title, HEADERS, as_text(rows), note)], to_json(rows))


HEADERS = (
    "scenario", "method", "tested model", "rounds", "seeds", "last batch", "best", "final",
    "printed", "",
)  # fmt: skip


def as_text(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as words, under ``HEADERS``."""
    return [
        [
            row.title,
            row.method,
            row.tested_model or "–",
            str(row.rounds),
            str(len(row.seeds)),
            row.last_batch or "–",
            or_dash(row.best),
            or_dash(row.final),
            _printed(row.printed),
            row.verdict,
        ]
        for row in rows
    ]


def beside(rows: Sequence[Row]) -> str:
    """The table in the paper's layout, as Markdown: measured (printed), a row per method.

    A dagger marks cells that kept a last batch that is not full.
    """
    by_place = {(row.method, row.scenario): row for row in rows}
    there = {row.method for row in rows}
    body = []
    for method in (name for name in (OURS | METHODS).values() if name in there):
        words = [method]
        for scenario in SCENARIOS:
            row = by_place.get((method, scenario))
            printed = f" ({_printed(row.printed)})" if row and row.printed else ""
            mark = "†" if row and KEPT in row.last_batch else ""
            words.append(or_dash(row.best) + mark + printed if row else "")
        body.append(words)
    return markdown(["method", *SCENARIOS.values()], body)


def agreement(rows: Sequence[Row]) -> str:
    """How many of the printed values are met, one-sided and two-sided, and by how many seeds.

    One-sided, a value above the printed one is met however far it lies; two-sided it is not.
    """
    printed = [row for row in rows if row.printed]
    there = [row for row in printed if row.best]
    met = [row for row in there if row.verdict != "miss"]
    seeds = sorted({len(row.seeds) for row in there})
    close = [row for row in there if row.is_close]
    said = f"{len(met)} of {len(printed)} printed values are met (within or better); "
    said += f"{len(close)} are within {CLOSE:g} points on either side"
    if len(there) < len(printed):
        said += f", {len(printed) - len(there)} are not measured yet"
    return said + (f"; seeds per value: {', '.join(map(str, seeds))}." if seeds else ".")


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [asdict(row) | {"verdict": row.verdict} for row in rows]


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(words)} |" for words in lines)


def without_cells(methods: Sequence[str]) -> str:
    """A sentence on the methods that nothing is stored of yet; nothing if there are none."""
    return f"No cells yet: {', '.join(methods)}." if methods else ""


def diverged(results: Iterable[Record]) -> str:
    """A sentence on users whose models diverged: averages are over the others from then on."""
    counts: dict[tuple[str, str], list[int]] = {}
    for record in results:
        lost = counts.setdefault((record.label, record.scenario.name), [0, 0])
        lost[0] += record.dropped
        lost[1] += record.users
    lines = [f"{who} on {where} ({n} of {of})" for (who, where), (n, of) in counts.items() if n]
    if not lines:
        return ""
    said = ", ".join(lines)
    return (
        f"Users whose models diverged, in these cells: {said}. From then on they are in no average."
    )


def or_dash(value: Spread | None) -> str:
    """The value, where there is one."""
    return "–" if value is None else str(value)


def _printed(value: Printed | None) -> str:
    return "–" if value is None else plus_minus(value.mean, value.std)


def plus_minus(mean: float, std: float | None) -> str:
    """A mean and its deviation, where it has one."""
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"
