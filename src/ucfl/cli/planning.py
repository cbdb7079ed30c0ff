"""``ucfl plan`` and ``ucfl systems``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ucfl import display, runs, units, wireless
from ucfl.cli.common import Device, Json, Model, Set, app, print_json, scenario_from, target_from
from ucfl.errors import UcflError
from ucfl.measure import ACCURACY, Measure
from ucfl.runs.budget import (
    Cost,
    Point,
    Rival,
    Spending,
    best_within,
    fronts_to_json,
    pareto_front,
    rivals,
)
from ucfl.runs.folder import holds_runs
from ucfl.runs.planning import DEFAULT_TRADEOFF, plan_to_json
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
            help="silhouette-per-time[:λ], silhouette, silhouette-minus-cost[:λ], "
            "or your own module:function of k, s and T_k / T_1."
        ),
    ] = DEFAULT_TRADEOFF,
    deadline: Annotated[
        str | None, typer.Option(help="The longest that a round may take, as 4s.")
    ] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(help="Users, the slowest, that a round does not wait for, as 10%."),
    ] = None,
    max_streams: Annotated[int | None, typer.Option(help="The most streams there may be.")] = None,
    within: Annotated[
        str | None,
        typer.Option(help="Time or energy for all of training, as 300s or 5kJ: which run to take."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Accuracy to time runs to, as 85%; FedAvg's final if none.")
    ] = None,
    bits: Annotated[
        float, typer.Option(help="Bits sent for a parameter, of a saved W or scenario.", min=0.01)
    ] = 32.0,
    model_bytes: Annotated[
        str | None, typer.Option(help="Model size, for a saved W, as 178kB.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the scenario's users and first weights.")] = 0,
    model: Model = None,
    set_: Set = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Plan for a network: which method and how many streams, by time and energy.

    Of a saved W or a scenario, every number of streams; of finished runs, also which of them is
    best for the time or energy that there is.
    """
    place = Path(source)
    saved = place.suffix in (".npy", ".npz", ".csv")
    stored = place.is_dir() and (holds_runs(place) or not user_files(place))
    if (saved or stored) and (set_ or model):
        raise UcflError(f"--set and --model have no effect on {place}, which is there already.")
    if model_bytes is not None and not saved:
        raise UcflError("--model-bytes is for a saved W alone; leave it out.")
    if stored and bits != 32:
        raise UcflError("stored runs sent the bits that they sent; leave --bits out.")
    if within is not None and not stored:
        raise UcflError("--within chooses among finished runs: give a folder of them.")
    if saved:
        size = (
            None if model_bytes is None else units.read(units.BYTES, model_bytes, "--model-bytes")
        )
        question = runs.Question.from_file(place, size)
    elif stored:
        question = runs.Question.from_runs(place)
    else:
        question = runs.Question.from_scenario(
            scenario_from(source, set_, None, model), seed, device
        )
    unit = "T_dl" if isinstance(wireless.find(system), wireless.WirelessSystem) else "s"
    limits = wireless.Limits(
        deadline=None if deadline is None else _time(deadline, unit, "--deadline"),
        max_streams=max_streams,
        leave_out=0.0 if leave_out is None else units.read(LEFT_OUT, leave_out, "--leave-out"),
    )
    goal = target_from(target, question.runs)
    of_streams = limits != wireless.Limits() or tradeoff != DEFAULT_TRADEOFF
    plan = None
    if question.weights is not None or of_streams or (within is None and goal is None):
        plan = question.plan(system, tradeoff=tradeoff, limits=limits, bits=bits)
    _answer(question, system, unit, plan, goal, within, as_json)


#: Users that a round does not wait for.
LEFT_OUT = units.Quantity(units.SHARE, 0, 0.99, plain=True)


def _answer(
    question: runs.Question,
    system: str,
    unit: str,
    plan: wireless.Plan | None,
    target: float | None,
    within: str | None,
    as_json: bool,
) -> None:
    """Print the plan, and of runs their times, fronts and the best one for the budget.

    Runs without W have no plan.
    """
    times = question.times(system, target)
    found, measure = question.spendings(system) if question.runs else ({}, ACCURACY)
    fronts = fronts_to_json(found, measure) if found else {}
    best, others = (None, []) if within is None else _best(found, measure, within, unit)
    if as_json:
        chosen: dict[str, Any] = {}
        if best is not None:
            offers = [{**asdict(rival.point), "p": rival.p} for rival in others]
            chosen = {"within": within, "best": asdict(best), "others": offers}
        planned = {"unit": unit}
        if plan is not None:
            planned = plan_to_json(plan) | {"of": question.source}
        print_json({"system": system, **planned, "times": times, **fronts, **chosen})
        return
    if plan is not None:
        display.show_plan(plan, system, question.source)
    if times:
        display.show_times(times, unit)
    if found:
        display.show_fronts(found, measure, unit)
    if best is not None:
        display.show_best(found[best.label], best, others, measure, within or "")


def _best(
    found: dict[str, Spending], measure: Measure, within: str, unit: str
) -> tuple[Point, list[Rival]]:
    """The best stored method for a time or an energy, and what the others have for it."""
    energy = any(within.strip().endswith(sign) for sign in units.ENERGY)
    limit = (
        units.read(units.JOULES, within, "--within") if energy else _time(within, unit, "--within")
    )
    kind: Cost = "joules" if energy else "time"
    front = pareto_front(found, measure, kind)
    if energy and not front:
        raise UcflError("the paper's systems know no power; give a cell, such as urban-micro.")
    best = best_within(front, limit, within)
    return best, rivals(found, measure, kind, limit, best)


def _time(text: str, unit: str, option: str) -> float:
    """A time in the system's unit: with a unit of time in a cell, a plain number of broadcasts."""
    if unit == "s":
        return units.read(replace(units.SECONDS, plain=True), text, option)
    try:
        return float(text.removesuffix("T_dl"))
    except ValueError:
        raise UcflError(
            f"{option} {text}: this system counts in broadcasts (T_dl), so write a plain number; "
            "for seconds choose a cell, such as urban-micro."
        ) from None


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
    )
