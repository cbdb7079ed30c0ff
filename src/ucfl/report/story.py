"""What runs have to say, as plain data: the page, the terminal and ``--json`` all tell this.

Aggregated here, so that a large comparison stays small: curves are statistics over users and
seeds, round by round; single users appear with their final value only.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.federation import Links
from ucfl.measure import Measure
from ucfl.report.answer import (
    SHARED_OR_ALONE,
    TOLD_THE_GROUPS,
    Story,
    answer,
    lower_than_final,
    race,
    tied,
)
from ucfl.report.collaboration import Panel, panels
from ucfl.report.palette import GROUPS, styles
from ucfl.runs import Record, Run, paired
from ucfl.runs.arrivals import over_seeds
from ucfl.runs.budget import Cost, pareto_front, spendings
from ucfl.runs.comparable import by_label
from ucfl.runs.folder import deviation, runs_in
from ucfl.runs.timing import unequal_rounds
from ucfl.users.names import numbered_names
from ucfl.wireless import SITES, SYSTEMS, Traffic, WirelessSystem, find
from ucfl.wireless.explained import properties
from ucfl.words import counted

Floats = NDArray[np.float64]

#: Weights of W that a story carries at most, over all seeds; the first seeds come first.
MOST_WEIGHTS = 1_000_000
#: Weights are whole numbers of these: half the characters, and nobody reads a fifth digit.
WEIGHT_STEP = 1e-4


def gather(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """The runs of several folders, by algorithm and seed; all of one scenario and one data set."""
    return by_label([run for folder in folders for run in runs_in(folder)])


def tell(runs: Mapping[str, Sequence[Run]]) -> Story:
    """The story of runs by algorithm."""
    return compose([run.record for found in runs.values() for run in found])


def compose(records: Sequence[Record]) -> Story:
    """The story of runs of one scenario, by their records; methods may differ in their seeds."""
    by_label: dict[str, list[Record]] = {}
    for one in records:
        by_label.setdefault(one.label, []).append(one)
    first = records[0]
    looks = styles(by_label)
    methods = [_method(label, found) | asdict(looks[label]) for label, found in by_label.items()]
    methods.sort(key=lambda method: -first.measure.goodness(method["final"]["mean"]))
    fedavg = next((method for method in methods if method["label"] == "fedavg"), methods[-1])
    told: Story = {
        "scenario": {"name": first.scenario.name, "description": first.scenario.description},
        "users": first.users,
        "participants": max(1, round(np.mean([one.participants for one in records]))),
        "rounds": max(method["rounds"] for method in methods),
        "seeds": sorted({one.seed for one in records}),
        "methods": methods,
        "measure": asdict(first.measure)
        | {"words": first.measure.words, "unit": first.measure.unit},
        "target": {"value": fedavg["mean"][-1], "of": fedavg["label"]},
        "systems": {name: asdict(system) for name, system in SYSTEMS.items()},
        "cells": radio_cells(by_label, first.measure),
        "groups": GROUPS,
        "weight_step": WEIGHT_STEP,
        "populations": _populations(records),
        "redrawn": _redrawn(records),
        "repeat": _repeat(records),
    }
    told["chosen"] = _best(methods, TOLD_THE_GROUPS)
    told["personal"] = _best(methods, (*TOLD_THE_GROUPS, *SHARED_OR_ALONE))
    rounds = {label: [one.rounds for one in found] for label, found in by_label.items()}
    told["unequal"] = unequal_rounds(rounds)
    told["race"] = race(told)
    told["compared"] = _compared(told["chosen"], by_label)
    told["tied"] = tied(told)
    told["answer"] = answer(told)
    told["notes"] = _notes(told, by_label)
    return told


def radio_cells(records: Mapping[str, Sequence[Record]], measure: Measure) -> dict[str, Any]:
    """Seconds and joules of every method in each kind of radio cell, and the best for each cost.

    Users are placed by the site's seed. The page has the values, and computes none of them.
    """
    found = {}
    for name, site in SITES.items():
        spent = spendings(records, site)
        kinds: tuple[Cost, ...] = ("time", "joules")
        found[name] = {
            "words": properties(site),
            "methods": {
                label: {kind: _significant(each.cost(kind)) for kind in kinds}
                for label, each in spent.items()
            },
            "fronts": {
                kind: [[p.label, p.round] for p in pareto_front(spent, measure, kind)]
                for kind in kinds
            },
        }
    return found


def _significant(values: Floats) -> list[float]:
    """Six digits: nobody reads more, and the page is shorter."""
    return [float(f"{value:.6g}") for value in values]


def _method(label: str, records: Sequence[Record]) -> dict[str, Any]:
    """Curves and final values of one algorithm, over the rounds that all its seeds have."""
    rounds = min(one.rounds for one in records)
    means = np.array([one.mean[: rounds + 1] for one in records])
    worsts = np.array([one.worst[: rounds + 1] for one in records])
    bands = [one.band[:, : rounds + 1] for one in records if one.band is not None]
    low, high = np.mean(bands, axis=0) if len(bands) == len(records) else (None, None)
    best = [one.measure.chosen_round(one.validation[: rounds + 1]) for one in records]
    picked = np.arange(len(records)), best
    traffic = np.mean([one.traffic[:rounds] for one in records], axis=0)
    start = np.mean([_row(one.start) for one in records], axis=0)
    return {
        "label": label,
        "tested_model": records[0].algorithm.tested_model,
        "personal": records[0].algorithm.streams_can_be_chosen,
        "streams": float(traffic[-1, 0]),
        "seeds": [one.seed for one in records],
        "rounds": rounds,
        "start": start.tolist(),
        "traffic": _run_lengths(traffic),
        "deadline": _deadline(records, rounds),
        "mean": means.mean(0).tolist(),
        "deviation": _rounded(deviation(means)),
        "low": None if low is None else _rounded(low),
        "high": None if high is None else _rounded(high),
        "worst": _rounded(worsts.mean(0)),
        "worst_deviation": _rounded(deviation(worsts)),
        "newcomers": over_seeds([one.newcomers for one in records]),
        "worst_examples": _worst_examples(records),
        "final": _summary(means[:, -1], worsts[:, -1]),
        "best": _summary(means[picked], worsts[picked]),
    }


def _worst_examples(records: Sequence[Record]) -> list[int] | None:
    """The fewest and the most test examples of the worst user, over seeds; None if not kept."""
    found = []
    for one in records:
        sizes, values = one.population.test_sizes, one.final
        if sizes is None or np.isnan(values).all():
            return None
        worst = np.nanargmin(values) if one.measure.more_is_better else np.nanargmax(values)
        found.append(sizes[int(worst)])
    return [min(found), max(found)]


def _compared(chosen: str, by_label: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """The chosen method against each of the others, user by user or seed by seed."""
    ours = by_label[chosen]
    tests = {
        label: paired.compare(ours, found) for label, found in by_label.items() if label != chosen
    }
    return {label: asdict(test) | {"shown": test.shown} for label, test in tests.items()}


def _deadline(records: Sequence[Record], rounds: int) -> dict[str, Any] | None:
    """The deadline on one of the paper's systems, and the share of seeds that waited for it."""
    time, name = records[0].scenario.deadline, records[0].scenario.system
    late = [one.late[:rounds].any(1) for one in records if one.late is not None]
    system = None if name is None else find(name)
    if time is None or not isinstance(system, WirelessSystem) or not late:
        return None
    shares = np.asarray(late, dtype=np.float64).mean(axis=0)
    return {"time": time, "system": asdict(system), "late": _rounded(shares)}


def _populations(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Users of each seed: who they are, how they fared, and who learnt from whom, by method."""
    found, learnt = [], panels(records)
    kept = _with_weights(learnt)
    for seed in sorted({one.seed for one in records}):
        here = [one for one in records if one.seed == seed]
        found.append(
            {
                "seed": seed,
                **asdict(here[0].population),
                "final": {one.label: _rounded(one.final) for one in here},
                "collaborations": {
                    panel.of: _learnt(panel, (seed, panel.of) in kept)
                    for panel in learnt.get(seed, ())
                },
            }
        )
    return found


def _with_weights(learnt: Mapping[int, Sequence[Panel]]) -> set[tuple[int, str]]:
    """Whose W the story carries: the first methods' of all seeds before the others'."""
    kept, budget = set(), MOST_WEIGHTS
    places = [(i, seed, panel) for seed, each in learnt.items() for i, panel in enumerate(each)]
    for _, seed, panel in sorted(places, key=lambda place: place[:2]):
        budget -= panel.weights.size
        if budget >= 0:
            kept.add((seed, panel.of))
    return kept


def _redrawn(records: Sequence[Record]) -> str:
    """What another seed drew: other ``users``, other ``examples`` of the same ones, or nothing.

    Users with names of their own (people, files of a folder) are the same with every seed.
    """
    kept = {one.origin.data for one in records}
    if len({one.seed for one in records}) < 2 or (None not in kept and len(kept) == 1):
        return ""
    if None in kept and records[0].scenario.split == "natural":
        return ""  # cells keep no names
    named = {tuple(one.population.names) for one in records}
    numbered = tuple(numbered_names(records[0].users))
    return "examples" if len(named) == 1 and numbered not in named else "users"


def _learnt(found: Panel, with_weights: bool) -> dict[str, Any]:
    steps = np.rint(found.weights / WEIGHT_STEP).astype(int)
    return {
        "of": found.of,
        "weights": steps.tolist() if with_weights else None,
        "labels": found.labels.tolist(),
        "own": found.own,
        "own_share": _rounded(np.array(found.own_shares()), 4),
        "silhouettes": _rounded(found.silhouettes, 4),
        "suggested": found.suggested,
        "reason": found.reason,
    }


def _repeat(records: Sequence[Record]) -> dict[str, Any]:
    """All that it takes to make the runs again."""
    origins = [one.origin for one in records]
    return {
        "commands": _distinct(origin.command for origin in origins if origin.command),
        "programs": _distinct(_by_program(o.program) for o in origins if o.program is not None),
        "versions": _distinct(origin.versions for origin in origins),
        "machines": _distinct(origin.machine for origin in origins),
        "runs": [
            {
                "algorithm": one.label,
                "seed": one.seed,
                "rounds": one.rounds,
                "data": one.origin.data,
                "model": one.origin.model,
                "kept": one.origin.kept,
            }
            for one in records
        ],
        "source": origins[0].source,
    }


def _by_program(name: str) -> str:
    if name:
        return f"Made from Python, by {name}: run that program again."
    return "Made from Python: run that program or notebook again."


def _best(methods: list[dict[str, Any]], without: Collection[str]) -> str:
    """The best method but for those; the best of all where there is no other."""
    left = [method for method in methods if method["label"].partition(":")[0] not in without]
    return str((left or methods)[0]["label"])


def _notes(story: Story, records: dict[str, list[Record]]) -> list[str]:
    """What a reader must know about these numbers."""
    seeds = story["seeds"]
    notes = [
        f"Curves are statistics over {story['users']} users"
        + (f" and {len(seeds)} seeds" if len(seeds) > 1 else "")
        + "; single users are kept for the final round only."
    ]
    if story["participants"] < story["users"]:
        notes.append(
            f"In a round, {story['participants']} of the {story['users']} users take part; all of "
            "them are evaluated."
        )
    scenario = next(iter(records.values()))[0].scenario
    if said := Links.of(scenario.uplink, scenario.downlink).words:
        notes.append(f"{said} Broadcasts and uploads are counted by their bytes, in whole models.")
    for label, found in records.items():
        notes += [f"{label}, seed {one.seed}: {one.stopped}." for one in found if one.stopped]
        short = [o for o in found if o.rounds < o.scenario.rounds and not o.stopped]
        if short:
            notes.append(
                f"{label} is not finished: {short[0].rounds} of "
                f"{counted(short[0].scenario.rounds, 'round')} (seed {short[0].seed})."
            )
        notes += _parts(label, found)
        if late := [one.late.sum(1).mean() for one in found if one.late is not None]:
            notes.append(
                f"{label} has {np.mean(late):.1f} users in a round, on average, that miss the "
                f"deadline of {found[0].scenario.deadline:g} in {found[0].scenario.system}; there, "
                "a round lasts as long as that at most."
            )
        if missing := [seed for seed in seeds if seed not in {one.seed for one in found}]:
            notes.append(f"{label} lacks seed {', '.join(map(str, missing))}.")
    if len({method["tested_model"] for method in story["methods"]}) > 1:
        notes.append(
            "Methods are tested on the model that each would deploy: "
            + ", ".join(f"{m['label']}: {m['tested_model']}" for m in story["methods"])
            + "."
        )
    notes += lower_than_final(story)
    if any(u["label_counts"] is None and u["labelled"] for u in story["populations"]):
        notes.append(
            "How many examples of which label each user has was not kept, so that is not shown."
        )
    return notes


def _parts(label: str, records: Sequence[Record]) -> list[str]:
    """How a method mixes the model by parts; with every seed, where seeds differ."""
    learnt = {one.seed: one.collaboration for one in records}
    said = {
        seed: "; ".join(map(str, found.parts if found else ())) for seed, found in learnt.items()
    }
    if len(set(said.values())) > 1:
        each = ", ".join(f"{words or 'as a whole'} (seed {seed})" for seed, words in said.items())
        return [f"{label} mixes the model by parts: {each}."]
    words = next(iter(said.values()))
    return [f"{label} mixes the model by parts: {words}."] if words else []


def _summary(means: Floats, worsts: Floats) -> dict[str, float]:
    return {
        "mean": float(means.mean()),
        "deviation": float(deviation(means)),
        "worst": float(worsts.mean()),
        "worst_deviation": float(deviation(worsts)),
    }


def _run_lengths(traffic: Floats) -> list[list[float]]:
    """[count, down, up, work] of each stretch of equal rounds."""
    return [[len(list(stretch)), *row] for row, stretch in itertools.groupby(traffic.tolist())]


def _row(traffic: Traffic) -> tuple[float, float, float]:
    return traffic.down, traffic.up, traffic.work


def _rounded(values: Floats, digits: int = 3) -> list[float]:
    found: list[float] = np.round(values, digits).tolist()
    return found


def _distinct(items: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
