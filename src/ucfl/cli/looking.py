"""``ucfl report``, ``figure``, ``watch`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ucfl import display, report
from ucfl.cli.common import Json, RunFolders, app, print_json, say, target_from
from ucfl.errors import UcflError, check_name
from ucfl.runs.files import write_atomically
from ucfl.runs.timing import unequal_rounds


@app.command("report")
def report_command(
    folders: RunFolders,
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html beside the runs if none.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Tell it here, and write no file.")] = False,
    as_json: Json = False,
) -> None:
    """Write one interactive page about runs: accuracy, time on air, who learns from whom."""
    story = report.tell(report.gather(folders))
    if as_json:
        print_json(story)
    elif text:
        display.show_story(story)
    else:
        file = out if out is not None else folders[0] / "report.html"
        page = report.page(story)
        write_atomically(file, lambda path: path.write_text(page, encoding="utf-8"))
        display.answers.print(f"The report is in {file}", soft_wrap=True)
        if open_:
            typer.launch(str(file))


@app.command("figure")
def figure_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(report.FIGURES)}.")],
    folders: RunFolders,
    out: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png file; NAME.pdf if none.")
    ] = None,
    system: Annotated[str, typer.Option(help="The network that times are for.")] = "slow-uplink",
    target: Annotated[
        str | None, typer.Option(help="Accuracy to time runs to, as 85%; FedAvg's final if none.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Two columns wide instead of one.")] = False,
) -> None:
    """Draw a figure of runs for print, in a journal's column width."""
    check_name("figure", name, report.FIGURES)
    file = report.check_suffix(out if out is not None else Path(f"{name}.pdf"))
    runs = report.gather(folders)
    width = report.DOUBLE if wide else report.SINGLE
    look = report.Look(system, target_from(target, runs), width)
    report.save(report.FIGURES[name](runs, look), file)
    rounds = {label: [run.checkpoint.round for run in each] for label, each in runs.items()}
    if unequal := unequal_rounds(rounds):
        say(unequal)
    display.answers.print(f"The figure is in {file}", soft_wrap=True)


@app.command("watch")
def watch_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
) -> None:
    """Follow a run that another process trains, until it is finished."""
    with display.rounds_shown() as on_round:
        for progress in report.follow(folder):
            on_round(progress)


@app.command("export")
def export_command(
    kind: Annotated[str, typer.Argument(help="tensorboard, mlflow or models.")],
    folders: RunFolders,
    to: Annotated[
        str | None,
        typer.Option(
            help="A folder (TensorBoard, models; ./tensorboard, ./models if none), or a tracking "
            "URI (MLflow; sqlite:///mlflow.db if none)."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace the models that were exported there before.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Your own module:factory, if the run's model was given as an object."),
    ] = None,
) -> None:
    """Give runs' histories to TensorBoard or MLflow, or write every user's model to a file."""
    check_name("export", kind, report.EXPORTS)
    export = report.EXPORTS[kind]
    for option, given in (("--fresh", fresh), ("--model", model is not None)):
        if given and not export.of_models:
            raise UcflError(f"{option} has no effect on {kind}; leave it out.")
    found = report.gather(folders)
    options = {"fresh": fresh, "model": model} if export.of_models else {}
    where = export.write(found, *([] if to is None else [to]), **options)
    display.answers.print(f"The {export.what} are in {where}", soft_wrap=True)
