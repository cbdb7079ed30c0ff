"""The round loop: train, evaluate, remember; stop anywhere and go on later."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from ucfl import algorithms, distributed, users
from ucfl.algorithms import Algorithm
from ucfl.errors import UcflError
from ucfl.execution import Options
from ucfl.federation import Federation, LocalTraining, create
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.folder import (
    CHECKPOINT,
    CONFIGURATION,
    METRICS,
    Configuration,
    Run,
    mean,
    read_configuration,
    worst,
    write_configuration,
    write_history,
)
from ucfl.runs.lock import held
from ucfl.users import Scenario, Users


@dataclass(frozen=True)
class Progress:
    """Where a run stands, told after every round."""

    label: str
    round: int
    rounds: int
    mean: float
    worst: float


OnRound = Callable[[Progress], None]
#: Told in plain words what an algorithm found before its first round.
OnNote = Callable[[str], None]


class Engine(Options, total=False):
    """How and where a federation computes: rounding, and nothing else, depends on it.

    ``device`` is a name, ``auto`` the GPU where there is one.
    """

    device: str


class Stopped(Exception):  # noqa: N818 (a stop is no error)
    """Ctrl-C came; the run is on disk up to its last whole round."""

    def __init__(self, folder: Path, t: int) -> None:
        super().__init__(f"stopped after round {t}")
        self.folder, self.round = folder, t


def run(
    scenario: str | Scenario,
    algorithm: str | Algorithm,
    *,
    seed: int = 0,
    rounds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    users: Users | None = None,
    checkpoint_seconds: float = 10.0,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    **engine: Unpack[Engine],
) -> Run:
    """Train one algorithm on one scenario, and keep the run in a folder.

    ``users`` takes the place of the scenario's own users. The folder is ``out``, or one under
    ``runs/`` named after the configuration. An unfinished run there is continued with ``resume``
    and replaced with ``fresh``; a checkpoint is written every ``checkpoint_seconds`` and at the
    end. Same seed and machine, same numbers, however often it was stopped.

    Under ``torchrun`` each process trains its share of the users; the first one writes the run.
    """
    scenario = adjusted(scenario, rounds)
    users = users if users is not None else scenario.build(seed)
    return train(
        scenario,
        algorithms.find(algorithm) if isinstance(algorithm, str) else algorithm,
        federation(scenario, seed, users=users, **engine),
        users,
        out=Path(out) if out is not None else None,
        resume=resume,
        fresh=fresh,
        checkpoint_seconds=checkpoint_seconds,
        on_round=on_round,
        on_note=on_note,
    )


def adjusted(scenario: str | Scenario, rounds: int | None) -> Scenario:
    """The scenario by name or value, with another number of rounds where one is given."""
    found = users.find(scenario) if isinstance(scenario, str) else scenario
    return found if rounds is None else found.change({"rounds": rounds})


def federation(
    scenario: Scenario,
    seed: int = 0,
    *,
    users: Users | None = None,
    device: str = "auto",
    **engine: Unpack[Options],
) -> Federation:
    """The federation that a scenario and a seed describe: this process's share of it."""
    distributed.join()
    users = _my_users(users if users is not None else scenario.build(seed))
    model = create(scenario.model, users.input_shape, users.classes, seed, scenario.initialisation)
    training = LocalTraining(
        lr=scenario.lr,
        momentum=scenario.momentum,
        batch=scenario.batch,
        epochs=scenario.epochs,
        last_batch=scenario.last_batch,
    )
    return Federation(
        users,
        model,
        training=training,
        device=find_device(device),
        seed=seed,
        variance_batch=scenario.variance_batch,
        **engine,
    )


def find_device(name: str) -> torch.device:
    """A device by name; ``auto`` is the GPU where there is one."""
    if name == "auto":
        name = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
        return torch.device(name)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UcflError(f"the device {name!r} cannot be used here ({reason}).") from error
    return device


def train(
    scenario: Scenario,
    algorithm: Algorithm,
    fed: Federation,
    users: Users,
    *,
    out: Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    checkpoint_seconds: float = 10.0,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> Run:
    """The loop itself, on a federation that stands; ``users`` are those of all processes."""
    if distributed.ranks() > 1 and not algorithm.sharded:
        raise UcflError(
            f"{algorithm.name} looks at all users' models at once, so its users cannot be shared "
            "out to processes; run it in one."
        )
    algorithm.check(fed)
    configuration = Configuration.of(scenario, algorithm, fed, users)
    folder = out or Path("runs") / configuration.folder_name
    alone = held(folder, on_note) if distributed.is_first() else nullcontext()
    with alone:
        _train(
            configuration,
            algorithm,
            fed,
            users,
            folder,
            resume=resume,
            fresh=fresh,
            checkpoint_seconds=checkpoint_seconds,
            on_round=on_round,
            on_note=on_note,
        )
    return Run(folder, scenario, algorithm, fed.seed)


def _train(
    configuration: Configuration,
    algorithm: Algorithm,
    fed: Federation,
    users: Users,
    folder: Path,
    *,
    resume: bool,
    fresh: bool,
    checkpoint_seconds: float,
    on_round: OnRound | None,
    on_note: OnNote | None,
) -> None:
    """The rounds, in a folder that is ours."""
    scenario = configuration.scenario
    point = None
    if distributed.is_first():
        point = _claim(folder, configuration, resume=resume, fresh=fresh, on_note=on_note)
    distributed.barrier()
    if resume and not distributed.is_first() and _checkpoint_file(folder).exists():
        point = Checkpoint.load(_checkpoint_file(folder), torch.device("cpu"))
    began = time.perf_counter()
    if point is None:
        state = algorithm.start(fed)
        if on_note and distributed.is_first() and (text := algorithm.describe(state)):
            on_note(f"{algorithm.label}: {text}")
        empty = {metric: torch.zeros(0, len(users)) for metric in METRICS}
        point = Checkpoint(0, 0.0, state, empty, torch.zeros(0, 3, dtype=torch.float64))
        point = replace(point, history=_evaluated(fed, algorithm, point))
    else:
        state = {
            k: v.to(fed.device) if isinstance(v, Tensor) else v for k, v in point.state.items()
        }
        point = replace(point, state=state)
    began -= point.seconds
    once = algorithm.start_traffic(fed, point.state)
    if distributed.is_first():
        write_configuration(folder, configuration, fed, users, once)
    saved, said = time.perf_counter(), False
    try:
        while point.round < scenario.rounds:
            # One assignment: a stop anywhere in a round leaves the round before, whole.
            point = _after_a_round(fed, algorithm, point, began)
            t = point.round
            if on_round and distributed.is_first():
                test = point.history["test_accuracy"][-1].double().numpy()
                on_round(Progress(algorithm.label, t, scenario.rounds, mean(test), worst(test)))
            if on_note and distributed.is_first() and not said:
                on_note(f"executor: {fed.executor}")
                said = True
            due = torch.tensor(time.perf_counter() - saved >= checkpoint_seconds)
            if bool(distributed.agreed(due.to(fed.device))):  # all processes at the same round
                _keep(folder, point)
                saved = time.perf_counter()
    except KeyboardInterrupt:
        _keep(folder, point)
        raise Stopped(folder, point.round) from None
    _keep(folder, point)
    before(_checkpoint_file(folder)).unlink(missing_ok=True)  # the run is whole without it
    distributed.barrier()  # the first has written the history: any process may read the run now


def _after_a_round(
    fed: Federation, algorithm: Algorithm, point: Checkpoint, began: float
) -> Checkpoint:
    """One round further: state, traffic and accuracies as one value."""
    t = point.round + 1
    state = algorithm.round(fed, point.state, t)
    sent = torch.tensor([astuple(algorithm.traffic(fed, state))], dtype=torch.float64)
    seconds = time.perf_counter() - began
    after = Checkpoint(t, seconds, state, point.history, torch.cat([point.traffic, sent]))
    return replace(after, history=_evaluated(fed, algorithm, after))


def _my_users(users: Users) -> Users:
    """This process's share of the users."""
    ranks = distributed.ranks()
    if ranks == 1:
        return users
    if len(users) < ranks:
        raise UcflError(
            f"{len(users)} users cannot be shared out to {ranks} processes: start fewer."
        )
    return users.select(list(distributed.share(len(users))))


def _checkpoint_file(folder: Path) -> Path:
    """This process's part of the checkpoint."""
    rank, ranks = distributed.rank(), distributed.ranks()
    return folder / (CHECKPOINT if rank == 0 else f"checkpoint-{rank}of{ranks}.safetensors")


def _keep(folder: Path, point: Checkpoint) -> None:
    """Checkpoint first: the history can be made from it again."""
    point.save(_checkpoint_file(folder))
    if distributed.is_first():
        write_history(folder, point)
        shutil.rmtree(_replaced(folder), ignore_errors=True)  # the new run has something now


def _evaluated(fed: Federation, algorithm: Algorithm, point: Checkpoint) -> dict[str, Tensor]:
    """The history with the accuracies of the state's models appended."""
    scores = {
        "test_accuracy": algorithm.accuracy(fed, point.state, "test"),
        "validation_accuracy": algorithm.accuracy(fed, point.state, "validation"),
    }
    return {
        metric: torch.cat(
            [point.history[metric], distributed.gathered(scores[metric].float()).cpu()[None]]
        )
        for metric in METRICS
    }


def _replaced(folder: Path) -> Path:
    """Where a run is kept that ``--fresh`` replaces, until the new one has stored something."""
    return folder.with_name(f".{folder.name}.replaced")


def _claim(
    folder: Path,
    configuration: Configuration,
    *,
    resume: bool,
    fresh: bool,
    on_note: OnNote | None,
) -> Checkpoint | None:
    """Make sure that the folder may be written; the checkpoint to go on from, if any."""
    rounds = configuration.scenario.rounds
    if _replaced(folder).exists() and not (folder / CHECKPOINT).exists():
        # The process that replaced it ended before it had stored anything.
        shutil.rmtree(folder, ignore_errors=True)
        _replaced(folder).rename(folder)
    if (folder / CONFIGURATION).exists():
        about = read_configuration(folder)
        if resume and about.get("processes", 1) != distributed.ranks():
            raise UcflError(
                f"{folder} was trained by {about.get('processes', 1)} processes; go on with as "
                "many, or start it again with --fresh."
            )
        stored = (folder / CHECKPOINT).exists()
        same = about["configuration"] == configuration.identity()
        if resume and not same:
            difference = _difference(about, configuration)
            raise UcflError(
                f"{folder} holds a run of another configuration ({difference}); give --out "
                "another folder, or replace it with --fresh."
            )
        if resume and stored:
            point = Checkpoint.load(folder / CHECKPOINT, torch.device("cpu"))
            if point.round > rounds:
                raise UcflError(
                    f"{folder} has {point.round} rounds already, more than the {rounds} asked for."
                )
            return point
        if not (resume or fresh):
            there = Checkpoint.load(folder / CHECKPOINT, torch.device("cpu")) if stored else None
            if same and there is not None and there.round == rounds:
                if on_note:
                    on_note(f"{folder} holds this run already; --fresh trains it again.")
                return there
            what = "another run"
            if same:
                what = f"this run with {there.round if there else 0} of {rounds} rounds"
            raise UcflError(
                f"{folder} holds {what}; continue it with --resume, replace it with --fresh, or "
                "give --out another folder."
            )
    elif folder.exists() and not folder.is_dir():
        raise UcflError(f"{folder} is a file; give --out a folder.")
    elif folder.exists() and any(folder.iterdir()):
        raise UcflError(f"{folder} is not empty and holds no run; give --out another folder.")
    try:
        if folder.exists():
            shutil.rmtree(_replaced(folder), ignore_errors=True)
            folder.rename(_replaced(folder))
        folder.mkdir(parents=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UcflError(
            f"{folder} cannot be written ({error.strerror}); give --out another folder."
        ) from error
    return None


def _difference(about: dict[str, object], configuration: Configuration) -> str:
    """Names of what differs, for the error message."""
    old, new = about["configuration"], configuration.identity()
    assert isinstance(old, dict)
    words = [key for key in new if key != "scenario" and old.get(key) != new[key]]
    old_scenario, new_scenario = old.get("scenario", {}), new["scenario"]
    words += [key for key in new_scenario if old_scenario.get(key) != new_scenario[key]]
    return "different " + ", ".join(words)
