"""The interactive page of each scenario, from its stored cells."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ucfl.paper.cells import Cell, Entry, Store
from ucfl.paper.items import ITEMS, Form, Item, longest
from ucfl.report import compose, page
from ucfl.report.answer import Story
from ucfl.runs import Record
from ucfl.runs.files import write_atomically
from ucfl.users import Scenario


def write_reports(
    items: Sequence[Item], form: Form, seeds: Iterable[int], store: Store
) -> dict[str, Path | None]:
    """Write ``report-SCENARIO.html`` for the items' scenarios; None for one without cells.

    A page has every method that has cells, whichever item they are for: it is the same page
    whatever was asked for beside it.
    """
    wanted = set(seeds)
    stored = [result for result in store.every() if result.seed in wanted]
    files: dict[str, Path | None] = {}
    for name, scenario in longest(items, form).items():
        found = [result for result in stored if _is_of(result, scenario)]
        file = store.folder / f"report-{scenario.name}.html"
        if found:
            text = page(story(name, form, found))
            write_atomically(file, partial(Path.write_text, data=text, encoding="utf-8"))
        files[scenario.name] = file if found else None
    return files


def story(name: str, form: Form, results: Sequence[Record]) -> Story:
    """What the cells of the scenario ``name`` have to say."""
    labels = dict.fromkeys(result.label for result in results)
    seeds = sorted({result.seed for result in results})
    asked = [item.name for item in ITEMS.values() if item.apart and _has(item, form, name)]
    command = ["ucfl", "reproduce", *asked, *form.options, "--only", name]
    command += ["--algorithms", ",".join(labels), "--seeds", ",".join(map(str, seeds)), "--report"]
    told = compose([_made_by(shlex.join(command), result) for result in results])
    return {**told, "notes": [*told["notes"], *filter(None, [form.note, _made_before(results)])]}


def _has(item: Item, form: Form, name: str) -> bool:
    """Whether the item has cells of a scenario."""
    return any(entry.scenario.name == form.scenarios[name].name for entry in item.entries(form))


def _made_before(results: Sequence[Record]) -> str:
    """What a reader must know of cells that an earlier version made."""
    kept = [result for result in results if result.origin.kept_last_batch]
    if not kept:
        return ""
    return (
        f"{len(kept)} of these {len(results)} runs are of version 0.1, in which a last batch that "
        "is not full made a step like any other (last_batch = keep)."
    )


def _made_by(command: str, record: Record) -> Record:
    """The record with the command that makes it again."""
    return replace(record, origin=replace(record.origin, command=command))


def _is_of(record: Record, scenario: Scenario) -> bool:
    """Whether the cell has exactly this scenario: names of cells differ wherever settings do."""
    cell = Cell.of(record)
    return Cell(Entry(scenario, record.label), record.seed).name == cell.name
