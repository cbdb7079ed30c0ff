"""What a story takes from one run: little, so that large runs and small cells tell the same one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.measure import ACCURACY, Measure
from ucfl.report.collaboration import Panel, collaboration
from ucfl.runs import Run
from ucfl.runs.folder import CHECKPOINT
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
    labelled: bool = True  # whether examples have a class each, which could be counted
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

    ``mean``, ``worst`` and ``validation`` (a mean, too) are over users, for rounds 0 to T, of what
    ``measure`` says; ``band`` [2, T + 1] are the ``BAND`` of users, where single users were kept
    for every round; ``final`` [m] is every user's value in the last. ``traffic`` [T, 3] has each
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
    measure: Measure = ACCURACY
    newcomers: dict[str, dict[str, float]] | None = None
    parts: tuple[str, ...] = ()  # of the model that are mixed differently, in words
    late: Floats | None = None  # [T] how many users miss the deadline; None: there is none
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
    test, measure = run.test[:length], run.measure
    users, configuration = run.about["users"], run.about["configuration"]
    return Account(
        scenario=run.scenario,
        label=run.algorithm.label,
        tested_model=run.algorithm.tested_model,
        is_personal=run.algorithm.streams_can_be_chosen,
        seed=run.seed,
        measure=measure,
        newcomers=run.newcomers,
        mean=np.array([measure.mean(row) for row in test]),
        worst=np.array([measure.worst(row) for row in test]),
        validation=np.array([measure.mean(row) for row in run.validation[:length]]),
        band=np.array([_quantile(measure.shown(test), share) for share in BAND]),
        final=measure.shown(test[-1]),
        start=run.start_traffic,
        traffic=run.checkpoint.traffic.numpy(),
        participants=float(run.checkpoint.cohorts.double().sum(1).mean()),
        population=Population(
            list(users["names"]),
            users.get("groups"),
            users.get("label_counts"),
            users.get("label_counts", ()) is not None,
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
        parts=() if (found := run.collaboration) is None else tuple(map(str, found.parts)),
        late=None if (late := run.checkpoint.late) is None else late.double().sum(1).numpy(),
        stopped=run.stopped_early,
    )


def _quantile(test: Floats, share: float) -> Floats:
    """Round by round over the users that have test data."""
    real = ~np.isnan(test[0])
    if not real.any():
        return np.full(len(test), np.nan)
    found: Floats = np.quantile(test[:, real], share, axis=1)
    return found
