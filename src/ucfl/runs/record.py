"""The record of a run: what tables, reports, plans and the paper's cells read, wherever it is kept.

A run's folder gives it (:attr:`Run.record`), and so does a small file without models
(:class:`ucfl.paper.Store`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ucfl.algorithms import Facts
from ucfl.collaboration import Collaboration
from ucfl.errors import UcflError
from ucfl.measure import Measure
from ucfl.runs.arrivals import ByWhen
from ucfl.runs.checkpoint import checkpoint_name
from ucfl.users import Scenario
from ucfl.wireless import Audience, Traffic

if TYPE_CHECKING:
    from ucfl.runs.folder import Run

Floats = NDArray[np.float64]

#: The first word of a stored command: the command line, or a person's own program.
COMMAND_LINE, PYTHON = "ucfl", "python"
#: Shares of users between which a curve's band over users lies.
BAND = (0.1, 0.9)
#: Of every record: the mean over users and the worst one, on two splits.
CURVES = ("test_mean", "test_worst", "validation_mean", "validation_worst")


@dataclass(frozen=True)
class Population:
    """The users of a run; what was not kept of them is None."""

    names: list[str]
    groups: list[int] | None = None
    label_counts: list[list[int]] | None = None
    labelled: bool = True  # whether examples have a class each, which could be counted
    test_sizes: list[int] | None = None
    validation_sizes: list[int] | None = None
    class_names: list[str] | None = None


@dataclass(frozen=True)
class Origin:
    """Where a run is kept, and what it takes to make it again; checksums where they were kept.

    ``command`` is empty where a person's own program made it: ``program`` is its name then, empty
    for a notebook. ``kept_last_batch``: it is of version 0.1, in which every last batch made a
    step.
    """

    kept: str
    command: str
    source: str
    versions: dict[str, Any]
    machine: dict[str, Any]
    data: str | None = None
    model: str | None = None
    kept_last_batch: bool = False
    program: str | None = None


@dataclass(frozen=True, eq=False)
class Record:
    """One run, finished or not.

    ``curves`` maps each of ``CURVES`` to its values [T + 1] of what ``measure`` says, round 0 being
    the untrained model; ``final`` and ``best`` [m] are every user's test value after the last round
    and after the one that validation chooses; ``band`` [2, T + 1] are the ``BAND`` of users, where
    single users were kept for every round. ``traffic`` [T, 3] has each round's models down, models
    up and work; ``by_user`` has every user's values [T + 1, m] on each split, where they were kept;
    ``cohorts`` and ``late`` [T, m] say who took part, and who missed the deadline
    (None: everyone, and nobody).
    """

    scenario: Scenario
    algorithm: Facts
    seed: int
    measure: Measure
    curves: Mapping[str, Floats]
    best_round: int
    final: Floats
    best: Floats
    start: Traffic
    traffic: Floats
    seconds: float
    model_bytes: int
    population: Population
    origin: Origin
    collaboration: Collaboration | None = None
    audience: Audience | None = None
    band: Floats | None = None
    by_user: Mapping[str, Floats] = field(default_factory=dict)
    cohorts: NDArray[np.bool_] | None = None
    late: NDArray[np.bool_] | None = None
    newcomers: ByWhen | None = None
    dropped: int = 0
    stopped: str = ""  # by which callback, before its last round

    @property
    def label(self) -> str:
        """The algorithm with its hyper-parameters."""
        return self.algorithm.label

    @property
    def users(self) -> int:
        """m."""
        return len(self.population.names)

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.traffic)

    @property
    def mean(self) -> Floats:
        """[T + 1]: over users, on test data."""
        return self.curves["test_mean"]

    @property
    def worst(self) -> Floats:
        """[T + 1]: of the worst user, on test data."""
        return self.curves["test_worst"]

    @property
    def validation(self) -> Floats:
        """[T + 1]: the mean over users on validation data."""
        return self.curves["validation_mean"]

    @property
    def participants(self) -> float:
        """How many users take part in a round, on average."""
        return float(self.users if self.cohorts is None else self.cohorts.sum(1).mean())

    def value(self, who: str, when: str) -> float:
        """``who`` is mean or worst, over users; ``when`` is final or best (validation-chosen)."""
        return float(self.curves[f"test_{who}"][self.best_round if when == "best" else -1])

    def check(self) -> None:
        """Raise ValueError unless the parts fit together."""
        users, rounds = self.users, self.rounds
        shapes = {"traffic": (rounds, 3), "final": (users,), "best": (users,)}
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        wrong += [
            f"{split} values of users"
            for split, values in self.by_user.items()
            if values.shape != (rounds + 1, users)
        ]
        wrong += [name for name in CURVES if self.curves[name].shape != (rounds + 1,)]
        wrong += (
            []
            if self.population.groups is None or len(self.population.groups) == users
            else ["groups"]
        )
        heard = () if self.audience is None else self.audience.parts
        wrong += ["labels"] if any(labels.shape != (users,) for _, labels in heard) else []
        if self.collaboration is not None and not self.collaboration.fits(users):
            wrong.append("weights or silhouettes")
        if wrong or rounds < 1 or self.best_round > rounds:
            raise ValueError(f"its parts do not fit each other: {', '.join(wrong) or 'rounds'}")


def record_of(run: Run) -> Record:
    """The record of a run's folder."""
    if not (run.folder / checkpoint_name()).exists() or run.checkpoint.round < 1:
        raise UcflError(f"{run.folder} has stored no round yet; see it train with ucfl watch.")
    point, measure = run.checkpoint, run.measure
    # The history may be of a later round: a process that trains writes the checkpoint first.
    tests = {split: run.split(split)[: point.round + 1] for split in ("test", "validation")}
    test, about = tests["test"], run.about
    curves = {
        f"{split}_{who}": np.array([over(row) for row in values])
        for split, values in tests.items()
        for who, over in (("mean", measure.mean), ("worst", measure.worst))
    }
    best = measure.chosen_round(curves["validation_mean"])
    program = _program(about["command"])
    return Record(
        scenario=run.scenario,
        algorithm=run.algorithm,
        seed=run.seed,
        measure=measure,
        curves=curves,
        best_round=best,
        final=measure.shown(test[-1]),
        best=measure.shown(test[best]),
        start=run.start_traffic,
        traffic=point.traffic.numpy(),
        seconds=point.seconds,
        model_bytes=run.model_bytes,
        population=_population(about["users"]),
        origin=Origin(
            kept=str(run.folder),
            command=shlex.join(about["command"]) if program is None else "",
            source=about["users"]["source"],
            versions=about["versions"],
            machine=about["machine"],
            data=about["configuration"]["data"],
            model=about["configuration"]["model"],
            program=program,
        ),
        collaboration=run.collaboration,
        audience=run.audience,
        band=np.array([_quantile(measure.shown(test), share) for share in BAND]),
        by_user={split: measure.shown(values) for split, values in tests.items()},
        cohorts=None if point.present is None else point.present.numpy(),
        late=None if point.late is None else point.late.numpy(),
        newcomers=run.newcomers,
        dropped=len(point.dropped),
        stopped=point.stopped,
    )


def _program(command: Sequence[str]) -> str | None:
    """The program of a person's own that made a run; None: the command line did.

    Earlier versions stored ``ucfl`` and the program's arguments, of which there mostly were none.
    """
    if list(command) == [COMMAND_LINE]:
        return ""
    return " ".join(command[1:]) if command[:1] == [PYTHON] else None


def _population(users: Mapping[str, Any]) -> Population:
    return Population(
        list(users["names"]),
        users.get("groups"),
        users.get("label_counts"),
        users.get("label_counts", ()) is not None,
        users.get("test_sizes"),
        users.get("validation_sizes"),
        users.get("class_names"),
    )


def _quantile(test: Floats, share: float) -> Floats:
    """Round by round over the users that have a value then, as means and worst users are."""
    real = [row[~np.isnan(row)] for row in test]
    return np.array([np.quantile(row, share) if len(row) else np.nan for row in real])
