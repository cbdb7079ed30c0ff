"""``ucfl deploy``: the same method between real machines."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ucfl import algorithms, display, runs
from ucfl.cli.common import (
    Device,
    Fresh,
    Json,
    Model,
    Resume,
    Rounds,
    ScenarioName,
    Set,
    app,
    print_json,
    say,
    scenario_from,
)
from ucfl.deploy import check_installed

deploy = typer.Typer(
    no_args_is_help=True, help="Train between machines that keep their data, on Flower."
)
app.add_typer(deploy, name="deploy")

AlgorithmName = Annotated[
    str, typer.Option("--algorithm", "-a", help="One that can be deployed; see docs/deploy.md.")
]
Seed = Annotated[int, typer.Option(help="Decides first weights and batches.")]
Deadline = Annotated[float, typer.Option(help="Seconds that a round waits for its users.", min=0.1)]
DEFAULT = "layered-user-centric"


@deploy.callback()
def _installed() -> None:
    """Every command of these needs Flower."""
    check_installed()


@deploy.command("demo")
def demo_command(
    scenario: ScenarioName = "rotated-mnist",
    algorithm: AlgorithmName = DEFAULT,
    users: Annotated[int, typer.Option(help="User processes.", min=2, max=64)] = 4,
    rounds: Annotated[int, typer.Option(help="Communication rounds.", min=1)] = 5,
    seed: Seed = 0,
    set_: Set = None,
    deadline: Deadline = 120.0,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/deployed"),
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """On this machine alone: a server and its users as processes, over TLS, with keys."""
    from ucfl.deploy.demo import demonstrate

    changes = [*(set_ or []), f"users={users}"]
    chosen = scenario_from(scenario, changes, rounds, None, [algorithm])
    with tempfile.TemporaryDirectory(prefix="ucfl-deploy-") as folder:
        result = demonstrate(
            chosen,
            algorithm,
            seed=seed,
            work=Path(folder),
            out=out,
            deadline=deadline,
            fresh=fresh,
            said=say,
        )
    _show(result, seed, as_json)


@deploy.command("server")
def server_command(
    scenario: ScenarioName = "rotated-mnist",
    algorithm: AlgorithmName = DEFAULT,
    users: Annotated[int, typer.Option(help="How many users to wait for.", min=1)] = 2,
    rounds: Rounds = None,
    model: Model = None,
    seed: Seed = 0,
    set_: Set = None,
    address: Annotated[str, typer.Option(help="Where to listen, HOST:PORT.")] = "127.0.0.1:9092",
    certificates: Annotated[
        Path, typer.Option(help="The folder of ucfl deploy certificate.")
    ] = Path("certificates"),
    keys: Annotated[Path, typer.Option(help="A folder with every user's NAME.pub.")] = Path("keys"),
    deadline: Deadline = 600.0,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for users before the first round.", min=1)
    ] = 3600.0,
    drawn: Annotated[
        str | None,
        typer.Option(
            "--drawn", hidden=True, help="Users have the scenario's data; whose command this is."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/deployed"),
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Wait for users, train with them, and keep the run."""
    from ucfl.deploy.contact import Plan
    from ucfl.deploy.processes import serve, start_logging

    start_logging()
    if drawn is not None:  # the record says how to repeat it, and its files are gone then
        sys.argv[1:] = shlex.split(drawn)
    chosen = scenario_from(scenario, set_, rounds, model, [algorithm])
    plan = Plan(
        chosen, algorithms.find(algorithm), seed, users, deadline, patience, own_data=drawn is None
    )
    with display.rounds_shown() as on_round:
        result = serve(
            plan,
            address=address,
            certificates=certificates,
            keys=keys,
            folder=out,
            resume=resume,
            fresh=fresh,
            on_round=on_round,
            on_note=say,
        )
    _show(result, seed, as_json)


@deploy.command("user")
def user_command(
    name: Annotated[str, typer.Argument(help="As the server has it: that of the key's file.")],
    data: Annotated[Path, typer.Option(help="A folder with this user's .npz or .csv file.")],
    server: Annotated[str, typer.Option(help="The server's address, HOST:PORT.")],
    key: Annotated[Path, typer.Option(help="This user's private key, of ucfl deploy key.")],
    certificate: Annotated[Path, typer.Option(help="The server's ca.pem.")] = Path("ca.pem"),
    state: Annotated[Path, typer.Option(help="Where this user keeps its model.")] = Path("state"),
    target_column: Annotated[
        str | None, typer.Option(help="The column of a .csv file to learn, if not target or label.")
    ] = None,
    model: Model = None,
    device: Device = "auto",
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Equal a simulation to the bit, for twice the work."),
    ] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds to try to reach a server that is gone.", min=1)
    ] = 3600.0,
) -> None:
    """Take part in training with this machine's data, which stays here."""
    from ucfl.deploy.processes import start_logging, take_part
    from ucfl.deploy.secret_files import checked_name

    start_logging()
    take_part(
        checked_name(name),
        data=data,
        address=server,
        certificate=certificate,
        key=key,
        state=state,
        target_column=target_column,
        model=model,
        device=device,
        reproducible=reproducible,
        patience=patience,
        said=say,
    )


@deploy.command("key")
def key_command(
    name: Annotated[str, typer.Argument(help="The user's name.")],
    out: Annotated[Path, typer.Option(help="The folder for both files.")] = Path(),
) -> None:
    """Make a user's private key, which stays with it, and the public one for the server."""
    from ucfl.deploy.secret_files import make_key

    private, public = make_key(name, out)
    say(f"{private} stays here, readable for you alone; give {public} to who runs the server.")


@deploy.command("certificate")
def certificate_command(
    hosts: Annotated[list[str], typer.Argument(help="Names and addresses of the server.")],
    out: Annotated[Path, typer.Option(help="The folder for its files.")] = Path("certificates"),
) -> None:
    """Make the server's certificate, and the file by which users know it."""
    from ucfl.deploy.secret_files import AUTHORITY, make_certificates

    make_certificates(out, hosts)
    say(f"{out} has the server's certificate and key; give {out / AUTHORITY} to every user.")


def _show(result: runs.Run, seed: int, as_json: bool) -> None:
    """The table of ``ucfl compare``."""
    found = runs.Comparison(result.scenario, (seed,), {result.algorithm.label: [result]})
    if as_json:
        print_json(found.to_json())
    else:
        display.show_comparison(found.to_json())
        display.answers.print(f"The run is in {result.folder}", soft_wrap=True)
