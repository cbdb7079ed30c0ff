"""What a story takes from one run: little, so that large runs and small cells tell the same one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.report.collaboration import Panel, collaboration
from ucfl.runs import Run
from ucfl.runs.folder import CHECKPOINT, mean, worst
from ucfl.users import Scenario
from ucfl.wireless import Traffic

Floats = NDArray[np.float64]

#: Shares of users between which a curve's band over users lies.
BAND = (0.1, 0.9)


@dataclass(frozen=True)
class Population:
    """The users of a run; what was not kept of them is None."""

    names: list[str]
    groups: list[int] | None = None
    label_counts: list[list[int]] | None = None
    test_sizes: list[int] | None = None


@dataclass(frozen=True)
class Origin:
    """Where a run is kept, and what it takes to make it again; checksums where they were kept."""

    kept: str
    command: str
    source: str
    versions: dict[str, Any]
    machine: dict[str, Any]
    data: str | None = None
    model: str | None = None


@dataclass(frozen=True, eq=False)
class Account:
    """One run, as far as a story tells of it, whatever it is kept in.

    ``mean``, ``worst`` and ``validation`` (a mean, too) are accuracies over users in percent for
    rounds 0 to T; ``band`` [2, T + 1] are the ``BAND`` of users, where single users were kept for
    every round; ``final`` [m] is every user's accuracy in the last. ``traffic`` [T, 3] has each
    round's models down, models up and work.
    """

    scenario: Scenario
    label: str
    tested_model: str
    is_personal: bool  # its number of streams can be chosen
    seed: int
    mean: Floats
    worst: Floats
    validation: Floats
    band: Floats | None
    final: Floats
    start: Traffic
    traffic: Floats
    participants: float  # in a round, on average
    population: Population
    collaboration: Panel | None
    origin: Origin
    stopped: str = ""  # by which callback, before its last round

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.traffic)


def account(run: Run) -> Account:
    """The account of a run's folder."""
    run = replace(run)  # the copy's checkpoint, which may be large, goes when the copy goes
    if not (run.folder / CHECKPOINT).exists() or run.checkpoint.round < 1:
        raise UcflError(f"{run.folder} has stored no round yet; see it train with ucfl watch.")
    length = run.checkpoint.round + 1
    test = run.per_user("test_accuracy")[:length]
    users, configuration = run.about["users"], run.about["configuration"]
    return Account(
        scenario=run.scenario,
        label=run.algorithm.label,
        tested_model=run.algorithm.tested_model,
        is_personal=run.algorithm.streams_can_be_chosen,
        seed=run.seed,
        mean=np.array([mean(row) for row in test]),
        worst=np.array([worst(row) for row in test]),
        validation=np.array([mean(row) for row in run.per_user("validation_accuracy")[:length]]),
        band=np.array([_quantile(100 * test, share) for share in BAND]),
        final=100 * test[-1],
        start=run.start_traffic,
        traffic=run.checkpoint.traffic.numpy(),
        participants=float(run.checkpoint.cohorts.double().sum(1).mean()),
        population=Population(
            list(users["names"]),
            users.get("groups"),
            users.get("label_counts"),
            users.get("test_sizes"),
        ),
        collaboration=collaboration(run),
        origin=Origin(
            kept=str(run.folder),
            command=shlex.join(run.about["command"]),
            source=users["source"],
            versions=run.about["versions"],
            machine=run.about["machine"],
            data=configuration["data"],
            model=configuration["model"],
        ),
        stopped=run.stopped_early,
    )


def _quantile(test: Floats, share: float) -> Floats:
    """Round by round over the users that have test data."""
    real = ~np.isnan(test[0])
    if not real.any():
        return np.full(len(test), np.nan)
    found: Floats = np.quantile(test[:, real], share, axis=1)
    return found
