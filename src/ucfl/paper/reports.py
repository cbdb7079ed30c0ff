"""The interactive page of each scenario, from its stored cells."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ucfl import algorithms
from ucfl.paper.cells import Cell, Entry, Result, Store
from ucfl.paper.items import Form, Item, longest
from ucfl.report import Account, Origin, Population, compose, page
from ucfl.report.answer import Story
from ucfl.report.collaboration import measured
from ucfl.runs.files import write_atomically
from ucfl.users import Scenario
from ucfl.users.names import numbered_names


def write_reports(
    items: Sequence[Item], form: Form, seeds: Iterable[int], store: Store
) -> dict[str, Path | None]:
    """Write ``report-SCENARIO.html`` for the items' scenarios; None for one without cells.

    A page has every method that has cells, whichever item they are for: it is the same page
    whatever was asked for beside it.
    """
    wanted = set(seeds)
    stored = [result for result in store.every() if result.cell.seed in wanted]
    files: dict[str, Path | None] = {}
    for name, scenario in longest(items, form).items():
        found = [result for result in stored if _is_of(result, scenario)]
        file = store.folder / f"report-{scenario.name}.html"
        if found:
            text = page(story(name, form, found))
            write_atomically(file, partial(Path.write_text, data=text, encoding="utf-8"))
        files[scenario.name] = file if found else None
    return files


def story(name: str, form: Form, results: Sequence[Result]) -> Story:
    """What the cells of the paper's scenario ``name`` have to say."""
    labels = dict.fromkeys(result.cell.entry.algorithm for result in results)
    seeds = sorted({result.cell.seed for result in results})
    command = ["ucfl", "reproduce", *form.options, "--only", name]
    command += ["--algorithms", ",".join(labels), "--seeds", ",".join(map(str, seeds)), "--report"]
    told = compose([account(result, shlex.join(command)) for result in results])
    return {**told, "notes": [*told["notes"], *filter(None, [form.note, _made_before(results)])]}


def _made_before(results: Sequence[Result]) -> str:
    """What a reader must know of cells that an earlier version made."""
    kept = [result for result in results if "last_batch" in result.about]
    if not kept:
        return ""
    return (
        f"{len(kept)} of these {len(results)} runs are of version 0.1, in which a last batch that "
        "is not full made a step like any other (last_batch = keep)."
    )


def account(result: Result, command: str) -> Account:
    """The account of a cell, which keeps curves over users, but single users at two rounds only."""
    cell, about, curves = result.cell, result.about, result.curves
    label = cell.entry.algorithm
    return Account(
        scenario=cell.entry.scenario,
        label=label,
        tested_model=about["tested_model"],
        is_personal=algorithms.find(label).streams_can_be_chosen,
        seed=cell.seed,
        mean=curves["test_mean"],
        worst=curves["test_worst"],
        validation=curves["validation_mean"],
        band=None,
        final=result.final,
        start=result.start_traffic,
        traffic=result.traffic,
        participants=float(result.about["users"]),
        population=Population(
            names=list(numbered_names(about["users"])),
            groups=None if result.groups is None else result.groups.tolist(),
        ),
        collaboration=(
            None
            if result.weights is None or result.silhouettes is None
            else measured(label, cell.seed, result.weights, result.silhouettes, result.labels)
        ),
        origin=Origin(
            kept=f"cells/{cell.name}.npz",
            command=command,
            source=about["data"],
            versions=about["versions"],
            machine={"device": about["device"]},
        ),
    )


def _is_of(result: Result, scenario: Scenario) -> bool:
    """Whether the cell has exactly this scenario: names of cells differ wherever settings do."""
    cell = result.cell
    return Cell(Entry(scenario, cell.entry.algorithm), cell.seed).name == cell.name
