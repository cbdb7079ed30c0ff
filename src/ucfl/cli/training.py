"""``ucfl run`` and ``ucfl compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ucfl
from ucfl import display, runs
from ucfl.algorithms import REGISTRY
from ucfl.cli.common import (
    Chunk,
    Compile,
    Device,
    DivergedUsers,
    Fresh,
    InPrecision,
    Json,
    Model,
    Plain,
    Resume,
    Rounds,
    ScenarioName,
    Set,
    app,
    print_json,
    say,
    scenario_from,
    seeds_from,
)


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
    on_divergence: DivergedUsers = "drop",
    device: Device = "auto",
    chunk: Chunk = None,
    plain: Plain = False,
    compiled: Compile = False,
    precision: InPrecision = "default",
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Time between checkpoints; 0: every round.", min=0)
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Train one algorithm on one scenario."""
    chosen = scenario_from(scenario, set_, rounds, model, [algorithm])
    with display.rounds_shown() as on_round:
        result = ucfl.run(
            chosen,
            algorithm,
            seed=seed,
            out=out,
            resume=resume,
            fresh=fresh,
            on_divergence=on_divergence,
            device=device,
            chunk=chunk,
            plain=plain,
            compiled=compiled,
            precision=precision,
            checkpoint_seconds=checkpoint_seconds,
            on_round=on_round,
            on_note=say,
        )
    comparison = runs.Comparison(chosen, (seed,), {result.algorithm.label: [result]})
    if as_json:
        print_json(
            {
                "scenario": chosen.name,
                "algorithm": result.algorithm.label,
                "seed": seed,
                "rounds": chosen.rounds,
                **result.summary,
                "tested_model": result.algorithm.tested_model,
                "uplink": chosen.uplink,
                "downlink": chosen.downlink,
                "traffic": runs.traffic_to_json(result.record),
                "seconds": result.checkpoint.seconds,
                "dropped": {
                    result.about["users"]["names"][user]: t for user, t in result.dropped.items()
                },
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
    on_divergence: DivergedUsers = "drop",
    device: Device = "auto",
    chunk: Chunk = None,
    plain: Plain = False,
    compiled: Compile = False,
    precision: InPrecision = "default",
    as_json: Json = False,
) -> None:
    """Compare algorithms on one scenario, over several seeds."""
    names = (
        list(REGISTRY) if algorithm == "all" else [name.strip() for name in algorithm.split(",")]
    )
    chosen, numbers = scenario_from(scenario, set_, rounds, model, names), seeds_from(seeds)
    with display.rounds_shown() as on_round:
        comparison = ucfl.compare(
            chosen,
            "all" if algorithm == "all" else names,
            seeds=numbers,
            out=out,
            resume=resume,
            fresh=fresh,
            on_divergence=on_divergence,
            device=device,
            chunk=chunk,
            plain=plain,
            compiled=compiled,
            precision=precision,
            on_round=on_round,
            on_note=say,
        )
    result = comparison.to_json()
    if as_json:
        print_json(result)
    else:
        display.show_comparison(result)
        display.answers.print(f"The runs are in {out}", soft_wrap=True)
