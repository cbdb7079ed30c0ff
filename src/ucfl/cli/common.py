"""What all commands share: the app, options that recur, how answers are given."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ucfl import __version__, display, runs, units
from ucfl.algorithms import find as find_algorithm
from ucfl.errors import UcflError
from ucfl.execution import Precision
from ucfl.options import check_seed
from ucfl.plain import plain
from ucfl.runs.loop import OnDivergence
from ucfl.users import Scenario, find

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="User-centric federated learning: every user gets its own mixture of everyone's updates.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ucfl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Every command says its options with --help."""


ScenarioName = Annotated[
    str,
    typer.Argument(
        metavar="[SCENARIO]", help="A name, a .toml file, or a folder of .npz or .csv files."
    ),
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
InPrecision = Annotated[
    Precision, typer.Option("--precision", help="Of the model's products on a GPU.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a stopped run stopped.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what the folder holds.")]
DivergedUsers = Annotated[
    OnDivergence,
    typer.Option(
        "--on-divergence",
        help="A user whose model becomes NaN or infinite: go on without it, or stop.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Runs' folders, or folders of them.")
]


def scenario_from(
    name: str,
    changes: list[str] | None,
    rounds: int | None,
    model: str | None,
    algorithms: Sequence[str] = (),
) -> Scenario:
    """The scenario that was named, with the changes that were asked for.

    A change must mean something to one of the algorithms at least.
    """
    fields: dict[str, Any] = {}
    for change in changes or ():
        field, equals, text = change.partition("=")
        if not equals:
            raise UcflError(f"--set takes FIELD=VALUE, not {change!r}.")
        fields[field.strip()] = _value(text.strip())
    chosen = [find_algorithm(text) for text in algorithms]
    for field in fields:
        if chosen and all(field in algorithm.unused for algorithm in chosen):
            label = chosen[0].label
            own = f"write {label}:{field}=…" if hasattr(chosen[0], field) else "leave it out"
            raise UcflError(f"--set {field} has no effect on {label}; {own}.")
    fields |= {"rounds": rounds} if rounds is not None else {}
    fields |= {"model": model} if model is not None else {}
    return find(name).change(fields)


def _value(text: str) -> Any:
    """A value as in a TOML file; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


#: Seeds of one command; each is a run of every algorithm.
MOST_SEEDS = 10_000


def seeds_from(text: str) -> list[int]:
    """Numbers from text such as 0, 0-4 or 1,3,5."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UcflError(f"--seeds takes numbers such as 0, 0-4 or 1,3,5, not {text!r}.")
        these = range(int(first), int(last if dash else first) + 1)
        if not these:
            raise UcflError(f"--seeds {part.strip()} names none; write the smaller number first.")
        check_seed(these[-1])
        if these[-1] - these[0] + len(seeds) >= MOST_SEEDS:
            raise UcflError(f"--seeds {text} names more than {MOST_SEEDS:,}; give fewer.")
        seeds += these
    return seeds


def print_json(value: Any) -> None:
    """The answer for machines: one object on standard output."""
    typer.echo(json.dumps(plain(value), indent=2))


def say(text: str) -> None:
    """A remark on standard error."""
    display.notes.print(f"ucfl: {text}", soft_wrap=True)


def target_from(text: str | None, found: Mapping[str, Sequence[runs.Run]]) -> float | None:
    """A value for runs to reach: shares in percent, as 85 or 85%.

    From 0 to 1 they need the sign, as nobody can tell 0.85 from 0.85%.
    """
    if text is None:
        return None
    first = next((each[0] for each in found.values()), None)
    percent = first is None or first.measure.percent
    if percent and text.strip().endswith("%"):
        return 100 * units.read(units.Quantity(units.SHARE, 0, 1), text, "--target")
    try:
        value = float(text)
    except ValueError:
        example = "85%" if percent else "0.5"
        raise UcflError(f"--target {text}: write a number, as {example}.") from None
    if percent and 0 < value <= 1:
        raise UcflError(
            f"--target {text}: write the accuracy with its percent sign, as {100 * value:g}%."
        )
    if percent and not 1 < value <= 100:
        raise UcflError(f"--target {text}: write a percentage between 0 and 100, as 85 or 85%.")
    return value
