"""The federation that a scenario describes: users, model, training, cohorts, device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from ucfl import distributed, users
from ucfl.errors import UcflError
from ucfl.execution import Options
from ucfl.federation import (
    CohortFunction,
    Cohorts,
    Federation,
    Links,
    LocalTraining,
    Objective,
    create,
    schedule,
)
from ucfl.federation import objective as objective_of
from ucfl.users import ModelSource, Participation, Scenario, Users, with_newcomers
from ucfl.users.effects import is_folder


class Engine(Options, total=False):
    """How and where a federation computes: rounding, and nothing else, depends on it.

    ``device`` is a name, ``auto`` the GPU where there is one.
    """

    device: str


class Given(TypedDict):
    """What a federation takes as an object, where a scenario has no field that could hold it."""

    objective: Objective | None
    participation: CohortFunction | None


def asked_for(
    scenario: str | Scenario,
    *,
    rounds: int | None,
    model: ModelSource | None,
    objective: Objective | str | None,
    participation: CohortFunction | float | str | None,
) -> tuple[Scenario, Given]:
    """The scenario with what a person gave beside it, and what of that is no field of it."""
    function = participation if callable(participation) else None
    own = objective if isinstance(objective, Objective) else None
    fields: dict[str, Any] = {"rounds": rounds, "model": model}
    fields |= {"objective": own.name if own else objective}
    fields |= {"participation": None if function else participation}
    return adjusted(scenario, **fields), Given(objective=own, participation=function)


def adjusted(scenario: str | Scenario, **fields: Any) -> Scenario:
    """The scenario by name or value, with those of the fields that are given (not None)."""
    found = users.find(scenario) if isinstance(scenario, str) else scenario
    given = {name: value for name, value in fields.items() if value is not None}
    return found.change(given) if given else found


def populated(
    scenario: Scenario, seed: int, given: Users | str | Path | None
) -> tuple[Scenario, Users]:
    """The users, given or the scenario's own, and the scenario with what is true of them."""
    if isinstance(given, str | Path):
        if not is_folder(str(given)):
            raise UcflError(f"users={str(given)!r} is no folder; give one with a file per user.")
        given = Users.from_folder(given, numbers=scenario.targets_are_numbers, seed=seed)
    if given is not None and not isinstance(given, Users):
        raise UcflError(
            f"users= takes ucfl.Users or a folder, and not a {type(given).__name__}; make them "
            "with ucfl.Users.from_arrays."
        )
    found = given if given is not None else scenario.build(seed)
    served = scenario.serving(found, given=given is not None)
    return served, with_newcomers(found, scenario.newcomers, seed)


def federation(
    scenario: Scenario,
    seed: int = 0,
    *,
    users: Users | None = None,
    participation: CohortFunction | None = None,
    objective: Objective | None = None,
    device: str = "auto",
    kind: type[Federation] = Federation,
    **engine: Unpack[Options],
) -> Federation:
    """The federation that a scenario and a seed describe: this process's share of it."""
    distributed.join()
    links = Links.of(scenario.uplink, scenario.downlink)
    users = users if users is not None else scenario.build(seed)
    cohorts = Cohorts.of(users, seed, Participation.of(scenario.participation), participation)
    mine = distributed.share(len(users))
    users = my_users(users)
    objective = objective or objective_of(scenario.objective)
    objective.check_users(users)
    outputs = objective.outputs(users)
    model = create(scenario.model, users.input_shape, outputs, seed, scenario.initialisation)
    training = LocalTraining(
        lr=scenario.lr,
        momentum=scenario.momentum,
        batch=scenario.batch,
        epochs=scenario.epochs,
        last_batch=scenario.last_batch,
        optimiser=scenario.optimiser,
        optimiser_state=scenario.optimiser_state,
        weight_decay=scenario.weight_decay,
        schedule=schedule(scenario.schedule, scenario.rounds),
    )
    return kind(
        users,
        model,
        objective=objective,
        training=training,
        device=find_device(device),
        seed=seed,
        variance_batch=scenario.variance_batch,
        gathered=distributed.gathered,
        cohort=lambda t: None if (all_ := cohorts(t)) is None else all_[mine.start : mine.stop],
        links=links,
        **engine,
    )


def find_device(name: str) -> torch.device:
    """A device by name; ``auto`` is the GPU where there is one."""
    if name == "auto":
        name = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
        return torch.device(name)
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):  # which would list every kind that PyTorch knows
        raise UcflError(
            f"unknown device {name!r}; choose auto (a GPU where there is one), cpu, cuda, or "
            "cuda:1 for the second GPU."
        ) from None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UcflError(
            f"the device {name!r} cannot be used here ({reason}); choose cpu, or auto, which takes "
            "a GPU where there is one."
        ) from error
    return device


def my_users(users: Users) -> Users:
    """This process's share of the users."""
    ranks = distributed.ranks()
    if ranks == 1:
        return users
    if len(users) < ranks:
        raise UcflError(
            f"{len(users)} users cannot be shared out to {ranks} processes: start fewer."
        )
    return users.select(list(distributed.share(len(users))))
