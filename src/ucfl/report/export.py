"""What goes out of runs: histories to TensorBoard and MLflow, users' models to files."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucfl.errors import UcflError, first_line, not_installed
from ucfl.runs import Run
from ucfl.runs.files import NotWritten
from ucfl.runs.folder import EVALUATED

#: MLflow's servers take no more in one request.
METRICS_AT_ONCE = 1000


def to_tensorboard(runs: dict[str, list[Run]], target: str = "tensorboard") -> str:
    """One log folder for each run under ``target``; see it with ``tensorboard --logdir``."""
    board = _extra("torch.utils.tensorboard", "tensorboard")
    home = Path(target)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".unfinished-") as scratch:
            for run in _every(runs):
                with board.SummaryWriter(str(Path(scratch) / run.folder.name)) as writer:
                    writer.add_text("configuration", f"{run.algorithm.label}, seed {run.seed}")
                    for t, name, value in _scalars(run):
                        writer.add_scalar(name, value, t)
            for folder in Path(scratch).iterdir():  # all of them are whole
                (home / folder.name).mkdir(exist_ok=True)
                for file in folder.iterdir():
                    file.replace(home / folder.name / file.name)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise NotWritten(
            f"{target} cannot take the histories ({reason}); free some space there, or give --to "
            "another place."
        ) from error
    return target


def to_mlflow(runs: dict[str, list[Run]], target: str = "sqlite:///mlflow.db") -> str:
    """One MLflow run for each run, in the experiment of the scenario's name; a tracking URI."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would call home
    mlflow = _extra("mlflow", "mlflow")
    if target.startswith("sqlite"):
        _extra("sqlalchemy", "mlflow")
    try:
        client = mlflow.MlflowClient(tracking_uri=target)
        for run in _every(runs):
            _log(run, client, importlib.import_module("mlflow.entities"))
    except mlflow.exceptions.MlflowException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UcflError(f"MLflow at {target} did not take the runs ({reason}).") from error
    return target


def _log(run: Run, client: Any, entities: Any) -> None:
    known = client.get_experiment_by_name(run.scenario.name)
    experiment = known.experiment_id if known else client.create_experiment(run.scenario.name)
    made = client.create_run(experiment, run_name=run.folder.name).info.run_id
    try:
        _log_into(made, run, client, entities)
    except BaseException:
        with contextlib.suppress(Exception):
            client.delete_run(made)  # rather none than half of one
        raise


def _log_into(made: str, run: Run, client: Any, entities: Any) -> None:
    about = {"algorithm": run.algorithm.label, "seed": run.seed, "folder": str(run.folder)}
    fields = run.scenario.model_dump(mode="json") | about
    client.log_batch(made, params=[entities.Param(k, str(v)) for k, v in fields.items()])
    now = int(1000 * time.time())
    metrics = [entities.Metric(name, value, now, t) for t, name, value in _scalars(run)]
    for start in range(0, len(metrics), METRICS_AT_ONCE):
        client.log_batch(made, metrics=metrics[start : start + METRICS_AT_ONCE])
    client.set_terminated(made)


def to_models(
    runs: dict[str, list[Run]],
    target: str = "models",
    *,
    fresh: bool = False,
    model: str | None = None,
) -> str:
    """A safetensors file for each user under ``target``; several runs have a folder each there."""
    every = _every(runs)
    for run in every:
        folder = Path(target) if len(every) == 1 else Path(target) / run.folder.resolve().name
        run.save_models(folder, model=model, fresh=fresh)
    return target


@dataclass(frozen=True)
class Export:
    """``write(runs, target)`` says where it wrote ``what``.

    ``of_models``: it takes ``fresh=`` and ``model=``.
    """

    write: Callable[..., str]
    what: str = "histories"
    of_models: bool = False


EXPORTS = {
    "tensorboard": Export(to_tensorboard),
    "mlflow": Export(to_mlflow),
    "models": Export(to_models, "models", of_models=True),
}


def _scalars(run: Run) -> Iterator[tuple[int, str, float]]:
    """(round, name, value): metrics over users (shares in percent), models sent."""
    for split, measure in itertools.product(EVALUATED, run.measures):
        metric = f"{split}_{measure.name}"
        for t, row in enumerate(run.per_user(metric)):
            yield t, f"{metric}/mean", measure.mean(row)
            yield t, f"{metric}/worst", measure.worst(row)
    for t, (down, up, _) in enumerate(run.checkpoint.traffic.tolist(), start=1):
        yield t, "models/down", down
        yield t, "models/up", up


def _every(runs: dict[str, list[Run]]) -> list[Run]:
    return [run for each in runs.values() for run in each]


def _extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise not_installed(f"ucfl export {extra} needs {module}", extra) from None
