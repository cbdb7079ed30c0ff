"""``ucfl reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ucfl import algorithms, display, distributed, paper, runs
from ucfl.cli.common import Compile, Device, Json, app, print_json, say, seeds_from
from ucfl.errors import UcflError, check_name
from ucfl.words import counted, either


@app.command("reproduce")
def reproduce_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ITEM]...", help=f"{', '.join(paper.ITEMS)}, or all."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Such as 0, 0-4 or 1,3,5; else those that are reported."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="SCENARIO", help="Run cells of this scenario only.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithms", help="Run cells of these only, comma-separated.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="A reduced form: this many rounds everywhere.", min=1)
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="A reduced form: small, on embedded images.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder of cells and figures.")] = Path("results"),
    device: Device = "auto",
    compiled: Compile = False,
    limit_seconds: Annotated[
        float | None, typer.Option(help="Stop after this time; the same command goes on.", min=0)
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only say which cells are there, and the time to go.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write an interactive page per scenario, too.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Reproduce the paper's tables and figures, or run the held-out set, cell by cell.

    Cells are kept as they finish and are not run again: stopped, the same command goes on.
    """
    if distributed.started_together():
        raise UcflError("cells are run by one process: start ucfl reproduce without torchrun.")
    items = paper.find(what or ())
    numbers = None if seeds is None else list(dict.fromkeys(seeds_from(seeds)))
    form = paper.EMBEDDED if embedded else paper.PAPER
    form = form if rounds is None else form.with_rounds(rounds)
    store = paper.Store(out / form.name)
    cells = paper.in_order(items, form, numbers)
    wanted = _filtered(cells, only, algorithm, form)
    found = paper.survey(cells, store, device, say).of(wanted)
    if list_:
        if as_json:
            print_json({"form": form.name or "paper", **found.to_json()})
        else:
            display.show_survey(found)
        return
    say(found.forecast)
    try:
        with display.rounds_shown() as on_round:
            in_time = paper.run_cells(
                found.to_do,
                store,
                device=device,
                compiled=compiled,
                limit_seconds=limit_seconds,
                on_round=on_round,
                on_note=say,
                on_cell=lambda cell: say(cell.name),
            )
    except runs.Stopped as stop:
        say(f"stopped after round {stop.round} of a cell; the same command goes on there.")
        raise typer.Exit(130) from None
    if not in_time:
        say("the time is up; the same command goes on.")
    found = paper.survey(cells, store, device)
    if in_time and (left := found.of(wanted).to_do):
        are = either(len(left), "is", "are")
        say(
            f"{counted(len(left), 'cell')} {are} not there, and in no table: what other processes "
            "work on, which the same command, asked again, will have, and what has diverged."
        )
    page = paper.make_page(items, form, found, store, with_reports=report)
    if as_json:
        print_json(page.to_json())
    elif markdown:
        typer.echo(page.markdown())
    else:
        display.show_page(page)


def _filtered(
    cells: list[paper.Cell], only: str | None, names: str | None, form: paper.Form
) -> list[paper.Cell]:
    """The cells that the filters leave; scenarios have the same names in every form."""
    if only is not None:
        there = {cell.entry.scenario.name for cell in cells}
        known = [name for name, scenario in form.scenarios.items() if scenario.name in there]
        check_name("scenario of these cells", only, known)
        name = form.scenarios[only].name
        cells = [cell for cell in cells if cell.entry.scenario.name == name]
    if names is not None:
        labels = {algorithms.find(text).label for text in names.split(",")}
        cells = [cell for cell in cells if cell.entry.algorithm in labels]
    if not cells:
        raise UcflError("none of the cells asked for passes --only and --algorithms.")
    return cells
