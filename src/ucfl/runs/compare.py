"""Several algorithms, several seeds, one table."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ucfl import algorithms as registry
from ucfl import distributed
from ucfl.algorithms import REGISTRY, Algorithm
from ucfl.errors import UcflError
from ucfl.federation import CohortFunction, Federation, Objective
from ucfl.runs.arrivals import over_seeds
from ucfl.runs.building import Engine, asked_for, federation, populated
from ucfl.runs.callbacks import Callback
from ucfl.runs.comparable import Entry, conflict_with_stored
from ucfl.runs.configuration import Configuration, explicit
from ucfl.runs.folder import Run, deviation
from ucfl.runs.loop import OnDivergence, OnNote
from ucfl.runs.progress import OnRound, shown_in_notebook
from ucfl.runs.record import Record
from ucfl.runs.starting import check_served, remarks, train
from ucfl.runs.words import table
from ucfl.users import ModelSource, Scenario, Users
from ucfl.wireless import Traffic

#: An algorithm as people give it: its name, itself, or its class.
Asked = str | Algorithm | type[Algorithm]


@dataclass(frozen=True)
class Comparison:
    """The runs of each algorithm, by its label, one per seed."""

    scenario: Scenario
    seeds: tuple[int, ...]
    runs: dict[str, list[Run]]

    def __repr__(self) -> str:
        return table(self)

    def to_json(self) -> dict[str, Any]:
        """The first metric over the seeds (shares in percent), best algorithm first.

        ``final`` is the last round, ``best`` the round that validation data chooses; ``std``
        is the sample deviation over seeds (0 for one seed).
        """
        rows = {label: self._row(runs) for label, runs in self.runs.items()}
        measure = next(iter(self.runs.values()))[0].measure
        order = sorted(rows, key=lambda label: -measure.goodness(rows[label]["mean"]["final"]))
        return {
            "scenario": self.scenario.name,
            "rounds": self.scenario.rounds,
            "seeds": list(self.seeds),
            "metric": asdict(measure),
            "uplink": self.scenario.uplink,
            "downlink": self.scenario.downlink,
            "algorithms": {label: rows[label] for label in order},
        }

    def _row(self, runs: list[Run]) -> dict[str, Any]:
        records = [run.record for run in runs]
        first = records[0]

        def summarised(who: str, statistic: Any) -> dict[str, float]:
            return {
                when: float(statistic([record.value(who, when) for record in records]))
                for when in ("final", "best")
            }

        return {
            "mean": summarised("mean", np.mean),
            "worst": summarised("worst", np.mean),
            "std": {who: summarised(who, deviation) for who in ("mean", "worst")},
            "newcomers": over_seeds([record.newcomers for record in records]),
            "tested_model": first.algorithm.tested_model,
            "traffic": traffic_to_json(first),
            "seconds": float(sum(record.seconds for record in records)),
            "runs": [str(run.folder) for run in runs],
            "dropped": sum(record.dropped for record in records),
        }


def traffic_to_json(record: Record) -> dict[str, Any]:
    """What the last round sent, in models and in bytes, and what was sent before the first.

    Models are counted by their bytes: a compressed one is less than one. ``up_bytes`` are those of
    all users that took part.
    """
    sent, there = Traffic(*record.traffic[-1].tolist()), record.users
    if record.cohorts is not None:
        there = int(record.cohorts[-1].sum())
    in_bytes = {
        "down_bytes": round(sent.down_bytes(record.model_bytes)),
        "up_bytes": round(sent.up_bytes(record.model_bytes, there)),
    }
    return asdict(sent) | in_bytes | {"start": asdict(record.start)}


def compare(
    scenario: str | Scenario,
    algorithms: Asked | Iterable[Asked] = "all",
    *,
    seeds: Iterable[int] = (0,),
    rounds: int | None = None,
    users: Users | str | Path | None = None,
    model: ModelSource | None = None,
    objective: Objective | str | None = None,
    participation: CohortFunction | float | str | None = None,
    out: str | Path = "runs",
    resume: bool = False,
    fresh: bool = False,
    on_divergence: OnDivergence = "drop",
    callbacks: Sequence[Callback] = (),
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    **engine: Unpack[Engine],
) -> Comparison:
    """Run every algorithm with every seed; each run has its own folder under ``out``.

    Args:
        scenario: As in :func:`ucfl.run`.
        algorithms: One or several, each as in :func:`ucfl.run`; ``all`` are those of ucfl that can
            serve the users, and which cannot is said.
        seeds: Each is a run of every algorithm.
        rounds: As in :func:`ucfl.run`, like all that follow but ``out``.
        users: The same users for every seed, whose held-out examples stay the same: seeds decide
            first weights and batches. Of a folder (here or as the scenario), each seed draws what
            is held out; without them, each seed draws the scenario's users.
        model: In the place of the scenario's model.
        objective: In the place of the scenario's objective.
        participation: In the place of the scenario's participation.
        out: The folder that the runs' folders go to. Where it holds runs that the new ones cannot
            be compared with, a remark says so.
        resume: Go on with runs that are there and not finished.
        fresh: Replace runs that are there.
        on_divergence: ``drop`` or ``stop``.
        callbacks: Called after every round of every run.
        on_round: Told the progress of every run.
        on_note: Told every remark.
        **engine: How to compute.

    Examples:
        >>> import numpy as np, ucfl
        >>> rng = np.random.default_rng(0)
        >>> pairs = [(rng.normal(size=(30, 4)), rng.integers(0, 2, 30)) for _ in range(3)]
        >>> users = ucfl.Users.from_arrays(pairs)
        >>> small = ucfl.Scenario(name="small", model="mlp", lr=0.05, batch=8, rounds=2)
        >>> comparison = ucfl.compare(small, ["fedavg", "local"], users=users, out="runs/two")
        >>> sorted(comparison.to_json()["algorithms"])
        ['fedavg', 'local']
    """
    scenario, given = asked_for(
        scenario, rounds=rounds, model=model, objective=objective, participation=participation
    )
    numbers = _numbers(seeds)
    chosen = _chosen(algorithms, numbers)
    labels = [algorithm.label for algorithm in chosen]
    runs: dict[str, list[Run]] = {}
    note = on_note or (lambda text: None)
    said: list[str] = []  # each remark once, and before what it concerns is trained
    conflict = ""
    for seed in numbers:
        scenario, people = populated(scenario, seed, users)
        fed = federation(scenario, seed, users=people, **given, **engine)
        distributed.check_equal({"algorithms": labels, "seeds": numbers}, fed.device)
        if algorithms == "all":
            chosen = _served(chosen, fed, note)
        for algorithm in chosen:
            check_served(algorithm, fed)
        planned = _planned(Path(out), scenario, chosen, fed, people)
        conflict = conflict or conflict_with_stored(Path(out), planned)
        found = [*remarks(scenario, fed), conflict]
        new = [remark for remark in found if remark and remark not in said]
        said += new
        for remark in new:
            note(remark)
        for algorithm, entry in zip(chosen, planned, strict=True):
            runs.setdefault(algorithm.label, []).append(
                train(
                    scenario,
                    algorithm,
                    fed,
                    people,
                    out=entry.folder,
                    resume=resume,
                    fresh=fresh,
                    on_divergence=on_divergence,
                    callbacks=callbacks,
                    on_round=shown_in_notebook(on_round),
                    on_note=note,
                )
            )
    # A method that cannot serve a later seed's users is in no row: means are over the same seeds.
    runs = {label: each for label, each in runs.items() if len(each) == len(numbers)}
    return Comparison(scenario, numbers, runs)


def _numbers(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds as a person gave them; a number alone may mean one seed or so many."""
    try:
        return tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        raise UcflError(
            f"seeds={seeds!r:.60} is no list of whole numbers: write seeds=[3] for the seed 3 "
            "alone, or seeds=range(3) for the seeds 0, 1 and 2."
        ) from None


def _chosen(algorithms: Asked | Iterable[Asked], seeds: Sequence[int]) -> list[Algorithm]:
    """The algorithms that were asked for; each of them, and of the seeds, once."""
    if algorithms == "all":
        asked: Iterable[Asked] = REGISTRY
    elif isinstance(algorithms, Iterable) and not isinstance(algorithms, str | Algorithm):
        asked = algorithms
    else:
        asked = [algorithms]
    chosen = [registry.find(one) for one in asked]
    if not chosen or not seeds:
        raise UcflError("a comparison needs at least one algorithm and one seed.")
    for words, kind in (([one.label for one in chosen], "algorithm"), (list(seeds), "seed")):
        if len(set(words)) < len(words):
            raise UcflError(f"the {kind}s {', '.join(map(str, words))} name one twice.")
    return chosen


def _planned(
    out: Path, scenario: Scenario, algorithms: Sequence[Algorithm], fed: Federation, users: Users
) -> list[Entry]:
    """The runs of one seed, each in a folder of its own under ``out``."""
    made = [Configuration.of(scenario, algorithm, fed, users) for algorithm in algorithms]
    stored = explicit(scenario)
    return [Entry.planned(out / one.folder_name, replace(one, scenario=stored)) for one in made]


def _served(algorithms: Sequence[Algorithm], fed: Federation, note: OnNote) -> list[Algorithm]:
    """Those that can serve the users, with a word on each of the others."""
    able = []
    for algorithm in algorithms:
        try:
            check_served(algorithm, fed)
            able.append(algorithm)
        except UcflError as error:
            note(f"{algorithm.label} is left out: {error}")
    return able
