"""Starting a run: from what people ask for to the loop in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Unpack

import torch

from ucfl import algorithms, distributed
from ucfl.algorithms import Algorithm
from ucfl.errors import UcflError
from ucfl.federation import (
    Architecture,
    CohortFunction,
    Federation,
    Objective,
)
from ucfl.runs import stopping
from ucfl.runs.attendance import Attendance
from ucfl.runs.building import Engine, asked_for, federation, populated
from ucfl.runs.callbacks import Callback
from ucfl.runs.claim import check_wish, claimed, common_point
from ucfl.runs.configuration import Configuration, cohorts, explicit
from ucfl.runs.deadline import Deadline
from ucfl.runs.folder import (
    Run,
)
from ucfl.runs.keep import checkpoint_file
from ucfl.runs.loop import Loop, OnDivergence, OnNote
from ucfl.runs.progress import OnRound, shown_in_notebook
from ucfl.users import ModelSource, Scenario, Users

#: Said of a person's own model, where nobody chose.
OWN_WEIGHTS = (
    "your model keeps the weights that its factory gave it (initialisation = own); PyTorch's "
    "default ones may hide from user-centric methods which users are alike: --set "
    "initialisation=he-glorot draws convolutions and linear layers that are not frozen anew."
)


#: Said where broadcasts are compressed and not everyone takes part in every round.
ABSENT = (
    "a compressed broadcast is a change of what its listeners had, so absent users are taken to "
    "hear every broadcast: who was switched off would have to fetch its model whole, which is not "
    "counted."
)


def run(
    scenario: str | Scenario,
    algorithm: str | Algorithm | type[Algorithm],
    *,
    seed: int = 0,
    rounds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_divergence: OnDivergence = "drop",
    users: Users | str | Path | None = None,
    model: ModelSource | None = None,
    objective: Objective | str | None = None,
    participation: CohortFunction | float | str | None = None,
    checkpoint_seconds: float = 10.0,
    callbacks: Sequence[Callback] = (),
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    **engine: Unpack[Engine],
) -> Run:
    """Train one algorithm on one scenario, and keep the run in a folder.

    Same seed and machine, same numbers, however often it was stopped. Under ``torchrun`` each
    process trains its share of the users; the first one writes the run.

    Args:
        scenario: A scenario, its name, a ``.toml`` file, or a folder with a file per user.
        algorithm: A name with options (``user-centric:streams=4``), ``module:Class``, a class or
            an object.
        seed: Decides users, first weights and batches.
        rounds: Communication rounds, in the place of the scenario's.
        out: The run's folder; if none, one under ``runs/`` named after the configuration.
        resume: Go on with an unfinished run that is there.
        fresh: Replace the run that is there.
        on_divergence: A user whose model becomes NaN or infinite is named, and is absent from that
            round on (``drop``; its accuracies are NaN then), or ends the run (``stop``); the rounds
            before are kept.
        users: In the place of the scenario's own users; may be a folder with a file per user.
        model: In the place of the scenario's model: a module, or a function that makes one.
        objective: In the place of the scenario's objective.
        participation: In the place of the scenario's: a share, a text such as ``10 users``, or a
            function that gives the places or names of round t's users.
        checkpoint_seconds: A checkpoint is written so often, and at the end; 0: after every round.
        callbacks: Functions of a :class:`~ucfl.runs.RoundInfo`, called after every round: what they
            return, as a mapping from names to a number or one per user, is added to the history;
            :class:`ucfl.StopRun` ends the run with that round.
        on_round: Called with a :class:`~ucfl.runs.Progress` after every round.
        on_note: Called with each remark, as text.
        **engine: How to compute: ``device``, ``chunk``, ``plain``, ``compiled``, ``precision``.

    Examples:
        >>> import numpy as np, ucfl
        >>> rng = np.random.default_rng(0)
        >>> pairs = [(rng.normal(size=(30, 4)), rng.integers(0, 2, 30)) for _ in range(3)]
        >>> users = ucfl.Users.from_arrays(pairs, names=["anna", "ben", "carla"])
        >>> small = ucfl.Scenario(name="small", model="mlp", lr=0.05, batch=8, rounds=2)
        >>> run = ucfl.run(small, "fedavg", users=users, out="runs/small")
        >>> run.per_user("test_accuracy").shape  # rounds 0 to 2, three users
        (3, 3)
        >>> run.model("ben")(users.test.inputs[1]).shape
        torch.Size([3, 2])
    """
    found, given = asked_for(
        scenario, rounds=rounds, model=model, objective=objective, participation=participation
    )
    scenario, users = populated(found, seed, users)
    chosen = algorithms.find(algorithm)
    fed = federation(scenario, seed, users=users, **given, **engine)
    for remark in remarks(scenario, fed):
        if on_note:
            on_note(remark)
    return train(
        scenario,
        chosen,
        fed,
        users,
        out=Path(out) if out is not None else None,
        resume=resume,
        fresh=fresh,
        on_divergence=on_divergence,
        checkpoint_seconds=checkpoint_seconds,
        callbacks=callbacks,
        on_round=shown_in_notebook(on_round),
        on_note=on_note,
    )


def remarks(scenario: Scenario, fed: Federation) -> list[str]:
    """What a person should know of a federation, whatever methods are run on it."""
    found = []
    if scenario.initialisation is None and explicit(scenario).initialisation == "own":
        found.append(OWN_WEIGHTS)
    compressed = fed.links.compresses("downlink")
    if compressed and (scenario.deadline is not None or cohorts(fed)):
        found.append(ABSENT)
    return found


def train(
    scenario: Scenario,
    algorithm: Algorithm,
    fed: Federation,
    users: Users,
    *,
    out: Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_divergence: OnDivergence = "drop",
    checkpoint_seconds: float = 10.0,
    callbacks: Sequence[Callback] = (),
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> Run:
    """The loop itself, on a federation that stands; ``users`` are those of all processes."""
    if callbacks and distributed.ranks() > 1:
        raise UcflError(
            "callbacks see all users of a run, so they need one process: give none here."
        )
    check_wish(resume=resume, fresh=fresh)
    scenario = explicit(scenario)
    configuration = Configuration.of(scenario, algorithm, fed, users)
    folder = out or Path("runs") / configuration.folder_name
    identity = configuration.identity()
    distributed.check_equal(
        {
            **{word: value for word, value in identity.items() if word != "scenario"},
            **identity["scenario"],
            "precision": configuration.precision,
            "rounds": scenario.rounds,
            "folder": folder.absolute(),
            "--resume": resume,
            "--fresh": fresh,
            "--on-divergence": on_divergence,
        },
        fed.device,
    )
    attendance = Attendance(algorithm, fed, users, Deadline.of(scenario, fed, users))
    check_served(algorithm, fed)
    first = distributed.is_first()
    with ExitStack() as stack:
        point = None
        with distributed.as_one(fed.device):
            if first:
                place = claimed(folder, configuration, resume=resume, fresh=fresh, on_note=on_note)
                point = stack.enter_context(place)
        stored = torch.tensor(point is not None, device=fed.device)
        if distributed.ranks() > 1 and bool(distributed.agreed(stored)):
            point = common_point(checkpoint_file(folder), fed.device)
        loop = Loop(
            configuration,
            algorithm,
            fed,
            users,
            folder,
            on_divergence,
            checkpoint_seconds,
            on_round if first else None,
            on_note if first else None,
            attendance,
            tuple(callbacks),
        )
        with stopping.between_rounds():
            loop(point)
    return Run(folder, scenario, configuration.algorithm, fed.seed, Architecture.of(fed))


def check_served(algorithm: Algorithm, fed: Federation) -> None:
    """Raise where an algorithm cannot serve these users, or not in these processes."""
    if distributed.ranks() > 1 and not algorithm.sharded:
        raise UcflError(
            f"{algorithm.name} looks at all users' models at once, so its users cannot be shared "
            "out to processes; run it in one."
        )
    algorithm.check(fed)
