"""``ucfl plan`` and ``ucfl systems``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ucfl import display, runs, wireless
from ucfl.cli.common import Device, Json, Model, Set, app, print_json, scenario_from
from ucfl.errors import UcflError
from ucfl.runs.folder import holds_runs
from ucfl.runs.planning import plan_to_json
from ucfl.users.folders import user_files


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
    saved = place.suffix in (".npy", ".npz", ".csv")
    stored = place.is_dir() and (holds_runs(place) or not user_files(place))
    if (saved or stored) and (set_ or model):
        raise UcflError(f"--set and --model have no effect on {place}, which is there already.")
    if model_bytes is not None and not saved:
        raise UcflError("--model-bytes is for a saved W alone; leave it out.")
    if saved:
        question = runs.Question.from_file(place, model_bytes)
    elif stored:
        question = runs.Question.from_runs(place)
    else:
        question = runs.Question.from_scenario(
            scenario_from(source, set_, None, model), seed, device
        )
    plan = question.plan(system, tradeoff=tradeoff, deadline=deadline, max_streams=max_streams)
    times = question.times(system, target)
    if as_json:
        print_json({"system": system, **plan_to_json(plan), "times": times})
    else:
        display.show_plan(plan, system)
        if times:
            display.show_times(times, plan.unit)


@app.command("systems")
def systems_command(
    name: Annotated[
        str | None, typer.Argument(help="Explain every option of this one, as urban-micro.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the networks that plans can be made for, or explain one with its options."""
    chosen = wireless.NETWORKS if name is None else {name: wireless.find(name)}
    if as_json:
        print_json({text: asdict(system) for text, system in chosen.items()})
        return
    if name is not None:
        _explain(name, chosen[name])
        return
    rows = [[known, wireless.summary(system)] for known, system in chosen.items()]
    display.show_table(["system", "what it is"], rows)
    display.answers.print(
        "ucfl systems NAME explains one; change an option as urban-micro:bandwidth=10MHz.",
        soft_wrap=True,
    )


def _explain(name: str, system: wireless.Network) -> None:
    rows = [[r.option, r.value, r.allowed, r.words] for r in wireless.explained(system)]
    display.show_table(["option", "value", "may be", "what it is"], rows, name)
    first = next((r for r in wireless.explained(system) if r.option == "bandwidth"), None)
    example = "rho=3" if first is None else "bandwidth=10MHz"
    display.answers.print(
        f"{wireless.summary(system)}. Change an option with "
        f"{name.partition(':')[0]}:{example}; quantities carry their units.",
        soft_wrap=True,
        markup=False,
    )
