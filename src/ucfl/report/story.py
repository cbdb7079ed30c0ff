"""What runs have to say, as plain data: the page, the terminal and ``--json`` all tell this.

Aggregated here, so that a large comparison stays small: curves are statistics over users and
seeds, round by round; single users appear with their final accuracy only.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.algorithms.user_centric import UserCentric
from ucfl.errors import UcflError
from ucfl.report.answer import SHARED_OR_ALONE, TOLD_THE_GROUPS, Story, answer
from ucfl.report.collaboration import Collaboration, by_seed, collaboration
from ucfl.report.palette import GROUPS, styles
from ucfl.runs import Run, find_runs
from ucfl.runs.folder import CHECKPOINT, best_round, deviation, mean, worst
from ucfl.wireless import SYSTEMS, Traffic

Floats = NDArray[np.float64]

#: Shares of users between which a curve's band over users lies.
BAND = (0.1, 0.9)
#: Weights of W that a story carries at most, over all seeds; the first seeds come first.
MOST_WEIGHTS = 1_000_000
#: Weights are whole numbers of these: half the characters, and nobody reads a fifth digit.
WEIGHT_STEP = 1e-4


def gather(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """The runs of several folders, by algorithm and seed; all of one scenario and one data set."""
    runs: dict[str, list[Run]] = {}
    for folder in folders:
        for label, found in find_runs(folder).items():
            runs.setdefault(label, []).extend(found)
    for label, found in runs.items():
        found.sort(key=lambda run: run.seed)
        if len({run.seed for run in found}) < len(found):
            raise UcflError(f"{label} comes twice with one seed; give each run once.")
    every = [run for found in runs.values() for run in found]
    for run in every:
        first, other = every[0].about["configuration"], run.about["configuration"]
        old, new = first["scenario"], other["scenario"]
        if differ := sorted(key for key in new if new[key] != old.get(key)):
            raise UcflError(
                f"{every[0].folder} and {run.folder} cannot be compared: their scenarios differ "
                f"in {', '.join(differ)}."
            )
    for seed in {run.seed for run in every}:
        if len({r.about["configuration"]["data"] for r in every if r.seed == seed}) > 1:
            raise UcflError(
                f"the runs of seed {seed} have different users' data; give those of one data set."
            )
    return runs


def tell(runs: dict[str, list[Run]]) -> Story:
    """The story of runs by algorithm."""
    digests = {label: [_digest(run) for run in found] for label, found in runs.items()}
    every = [digest for found in digests.values() for digest in found]
    first = every[0]
    looks = styles(digests)
    methods = [_method(label, found) | asdict(looks[label]) for label, found in digests.items()]
    methods.sort(key=lambda method: -np.nan_to_num(method["final"]["mean"]))
    fedavg = next((method for method in methods if method["label"] == "fedavg"), methods[-1])
    told: Story = {
        "scenario": {key: first.scenario[key] for key in ("name", "description")},
        "users": first.users,
        "rounds": max(method["rounds"] for method in methods),
        "seeds": sorted({digest.seed for digest in every}),
        "methods": methods,
        "target": {"accuracy": fedavg["mean"][-1], "of": fedavg["label"]},
        "systems": {name: asdict(system) for name, system in SYSTEMS.items()},
        "groups": GROUPS,
        "weight_step": WEIGHT_STEP,
        "populations": _populations(every),
        "repeat": _repeat(every),
    }
    told["chosen"] = _best(methods, TOLD_THE_GROUPS)
    told["personal"] = _best(methods, (*TOLD_THE_GROUPS, *SHARED_OR_ALONE))
    told["answer"] = answer(told)
    told["notes"] = _notes(told, digests)
    return told


@dataclass(frozen=True)
class _Digest:
    """The little that a story takes from a run, whose checkpoint may be large."""

    folder: Path
    scenario: dict[str, Any]
    about: dict[str, Any]
    label: str
    tested_model: str
    is_personal: bool
    seed: int
    test: Floats
    validation: Floats
    start: Traffic
    traffic: Floats
    collaboration: Collaboration | None

    @property
    def users(self) -> int:
        return len(self.about["users"]["names"])

    @property
    def rounds(self) -> int:
        return len(self.traffic)


def _digest(run: Run) -> _Digest:
    run = replace(run)  # the copy's checkpoint goes when the copy goes
    if not (run.folder / CHECKPOINT).exists() or run.checkpoint.round < 1:
        raise UcflError(f"{run.folder} has stored no round yet; see it train with ucfl watch.")
    length = run.checkpoint.round + 1
    return _Digest(
        folder=run.folder,
        scenario=run.scenario.model_dump(mode="json"),
        about=run.about,
        label=run.algorithm.label,
        tested_model=run.algorithm.tested_model,
        is_personal=run.algorithm.name == UserCentric.name,
        seed=run.seed,
        test=run.per_user("test_accuracy")[:length],
        validation=run.per_user("validation_accuracy")[:length],
        start=run.start_traffic,
        traffic=run.checkpoint.traffic.numpy(),
        collaboration=collaboration(run),
    )


def _method(label: str, digests: list[_Digest]) -> dict[str, Any]:
    """Curves and accuracies of one algorithm, over the rounds that all its seeds have."""
    rounds = min(digest.rounds for digest in digests)
    tests = [100 * digest.test[: rounds + 1] for digest in digests]
    means = np.array([[mean(row) for row in digest.test[: rounds + 1]] for digest in digests])
    worsts = np.array([[worst(row) for row in digest.test[: rounds + 1]] for digest in digests])
    low, high = (np.mean([_quantile(test, share) for test in tests], axis=0) for share in BAND)
    best = [best_round(digest.validation[: rounds + 1]) for digest in digests]
    picked = np.arange(len(digests)), best
    traffic = np.mean([digest.traffic[:rounds] for digest in digests], axis=0)
    start = np.mean([_row(digest.start) for digest in digests], axis=0)
    return {
        "label": label,
        "tested_model": digests[0].tested_model,
        "personal": digests[0].is_personal,
        "streams": float(traffic[-1, 0]),
        "seeds": [digest.seed for digest in digests],
        "rounds": rounds,
        "start": start.tolist(),
        "traffic": _run_lengths(traffic),
        "mean": means.mean(0).tolist(),
        "deviation": _rounded(deviation(means)),
        "low": _rounded(low),
        "high": _rounded(high),
        "worst": _rounded(worsts.mean(0)),
        "worst_deviation": _rounded(deviation(worsts)),
        "final": _summary(means[:, -1], worsts[:, -1]),
        "best": _summary(means[picked], worsts[picked]),
    }


def _populations(digests: list[_Digest]) -> list[dict[str, Any]]:
    """Users of each seed (another seed draws other users): who they are, and how they fared."""
    found, budget = [], MOST_WEIGHTS
    learnt = by_seed((digest.seed, digest.collaboration) for digest in digests)
    for seed in sorted({digest.seed for digest in digests}):
        here = [digest for digest in digests if digest.seed == seed]
        users = here[0].about["users"]
        budget -= learnt[seed].weights.size if seed in learnt else 0
        found.append(
            {
                "seed": seed,
                "names": list(users["names"]),
                "groups": users.get("groups"),
                "label_counts": users.get("label_counts"),
                "test_sizes": users.get("test_sizes"),
                "accuracy": {digest.label: _rounded(100 * digest.test[-1]) for digest in here},
                "collaboration": _learnt(learnt[seed], budget >= 0) if seed in learnt else None,
            }
        )
    return found


def _learnt(found: Collaboration, with_weights: bool) -> dict[str, Any]:
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


def _repeat(digests: list[_Digest]) -> dict[str, Any]:
    """All that it takes to make the runs again."""
    commands = [shlex.join(digest.about["command"]) for digest in digests]
    abouts = [digest.about for digest in digests]
    return {
        "commands": list(dict.fromkeys(commands)),
        "versions": _distinct(about["versions"] for about in abouts),
        "machines": _distinct(about["machine"] for about in abouts),
        "runs": [
            {
                "algorithm": digest.label,
                "seed": digest.seed,
                "rounds": digest.rounds,
                "data": digest.about["configuration"]["data"],
                "model": digest.about["configuration"]["model"],
                "folder": str(digest.folder),
            }
            for digest in digests
        ],
        "source": digests[0].about["users"]["source"],
    }


def _best(methods: list[dict[str, Any]], without: Collection[str]) -> str:
    """The best method but for those; the best of all where there is no other."""
    left = [method for method in methods if method["label"].partition(":")[0] not in without]
    return str((left or methods)[0]["label"])


def _notes(story: Story, digests: dict[str, list[_Digest]]) -> list[str]:
    """What a reader must know about these numbers."""
    seeds = story["seeds"]
    notes = [
        f"Curves are statistics over {story['users']} users"
        + (f" and {len(seeds)} seeds" if len(seeds) > 1 else "")
        + ", computed when this report was made; single users are kept for the final round only."
    ]
    for label, found in digests.items():
        short = [d for d in found if d.rounds < d.scenario["rounds"]]
        if short:
            notes.append(
                f"{label} is not finished: {short[0].rounds} of {short[0].scenario['rounds']} "
                f"rounds (seed {short[0].seed})."
            )
        if missing := [seed for seed in seeds if seed not in {d.seed for d in found}]:
            notes.append(f"{label} lacks seed {', '.join(map(str, missing))}.")
    if len({method["tested_model"] for method in story["methods"]}) > 1:
        notes.append(
            "Methods are tested on the model that each would deploy: "
            + ", ".join(f"{m['label']}: {m['tested_model']}" for m in story["methods"])
            + "."
        )
    absent = [p for p in story["populations"] if p["label_counts"] is None]
    if absent:
        notes.append(
            "These runs were made before run folders kept sizes, label counts and groups, so those "
            "are not shown."
        )
    return notes


def _summary(means: Floats, worsts: Floats) -> dict[str, float]:
    return {
        "mean": float(means.mean()),
        "deviation": float(deviation(means)),
        "worst": float(worsts.mean()),
        "worst_deviation": float(deviation(worsts)),
    }


def _quantile(test: Floats, share: float) -> Floats:
    """Round by round over the users that have test data."""
    real = ~np.isnan(test[0])
    if not real.any():
        return np.full(len(test), np.nan)
    found: Floats = np.quantile(test[:, real], share, axis=1)
    return found


def _run_lengths(traffic: Floats) -> list[list[float]]:
    """[count, down, up, work] of each stretch of equal rounds."""
    return [[len(list(stretch)), *row] for row, stretch in itertools.groupby(traffic.tolist())]


def _row(traffic: Traffic) -> tuple[float, float, float]:
    return traffic.down, traffic.up, traffic.work


def _rounded(values: Floats, digits: int = 3) -> list[float]:
    found: list[float] = np.round(values, digits).tolist()
    return found


def _distinct(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
