"""The worst user of Table II, by every definition that its text allows, beside what is printed.

The paper does not say how it takes the worst user over runs and rounds. The definitions:

- *chosen*: the mean over runs of the lowest user at the validation-chosen round (ours);
- *highest*: the mean over runs of the maximum over rounds of the lowest user, which is what the
  plotting code that its authors once published does, there on the whole 20% that is held out;
- *of means*: the lowest user of the mean over runs, at the validation-chosen rounds. Seeds draw
  other users, so it pairs users by their number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ucfl.paper.items import Form
from ucfl.paper.printed import METHODS, SCENARIOS, TABLE_2
from ucfl.paper.reproduce import Measured
from ucfl.paper.tables import CLOSE, Shown, Table, shown
from ucfl.runs import Record
from ucfl.runs.record import Floats


def whole(record: Record) -> Floats | None:
    """[T + 1, m]: users on both halves of their held-out data; None where these were not kept."""
    sizes = record.population.test_sizes, record.population.validation_sizes
    if not {"test", "validation"} <= set(record.by_user) or None in sizes:
        return None
    test, validation = (np.asarray(each, dtype=np.float64) for each in sizes)
    found = np.nan_to_num(record.by_user["test"]) * test
    found = found + np.nan_to_num(record.by_user["validation"]) * validation
    together: Floats = found / (test + validation)
    return together


def chosen(results: Sequence[Record]) -> float | None:
    """At the round that validation chooses, on the test half."""
    return float(np.mean([record.value("worst", "best") for record in results]))


def highest(results: Sequence[Record]) -> float | None:
    """Of any round, on the test half: chosen by test data, so an upper end of what is attained."""
    return float(np.mean([np.nanmax(record.worst) for record in results]))


def highest_of_both(results: Sequence[Record]) -> float | None:
    """The same on both halves, as the authors' plotting code has it."""
    each = [whole(record) for record in results]
    found = [np.nanmax(np.nanmin(one, axis=1)) for one in each if one is not None]
    return float(np.mean(found)) if len(found) == len(each) else None


def of_means(results: Sequence[Record]) -> float | None:
    """The lowest user of the mean over runs, on the test half."""
    return float(np.nanmin(np.mean([record.best for record in results], axis=0)))


def of_means_of_both(results: Sequence[Record]) -> float | None:
    """The same on both halves."""
    each = [whole(record) for record in results]
    found = [
        one[record.best_round] for one, record in zip(each, results, strict=True) if one is not None
    ]
    return float(np.nanmin(np.mean(found, axis=0))) if len(found) == len(each) else None


#: By the words of a table's head.
DEFINITIONS: dict[str, Callable[[Sequence[Record]], float | None]] = {
    "chosen round": chosen,
    "highest round": highest,
    "highest round, whole 20%": highest_of_both,
    "worst of means": of_means,
    "worst of means, whole 20%": of_means_of_both,
}


def side_by_side(form: Form, measured: Measured) -> Table:
    """Every value of Table II by every definition, and how many of each are close to it."""
    rows, near = [], dict.fromkeys(DEFINITIONS, 0)
    there = dict.fromkeys(DEFINITIONS, 0)
    for scenario, values in TABLE_2.items():
        for name, printed in values.items():
            results = measured.get(form.entry(scenario, name), ())
            words = [SCENARIOS[scenario], METHODS[name], str(len(results))]
            for head, definition in DEFINITIONS.items():
                value = definition(results) if results else None
                words.append("–" if value is None else f"{value:.1f}")
                there[head] += value is not None
                near[head] += value is not None and abs(value - printed.mean) <= CLOSE
            rows.append([*words, f"{printed.mean:.1f}"])
    counts = [f"{near[head]} of {there[head]}" for head in DEFINITIONS]
    rows.append([f"within {CLOSE:g} points of the printed value", "", "", *counts, ""])
    heads = ("scenario", "method", "seeds", *DEFINITIONS, "printed")
    return Table("Table II by every definition of the worst user", heads, rows)


def table2_shown(form: Form, measured: Measured) -> Shown:
    """Table II, and by every definition where it is the paper's form."""
    found = shown("table2", form, measured)
    return (
        found if form.name else Shown([*found.tables, side_by_side(form, measured)], found.values)
    )
