"""``ucfl plan``: how many streams, for a run, a saved W or a scenario, on a given network."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl import algorithms, wireless
from ucfl.algorithms import Facts
from ucfl.arrays import read_npy, read_npz
from ucfl.collaboration import Collaboration, stream_choices, tradeoff_function
from ucfl.collaboration.streams import MOST_STREAMS, NEARLY, number_in
from ucfl.errors import UcflError, unreadable
from ucfl.imports import load
from ucfl.measure import Measure
from ucfl.runs.budget import Spending, spendings
from ucfl.runs.building import federation
from ucfl.runs.comparable import by_label
from ucfl.runs.folder import Run, runs_in
from ucfl.runs.timing import common_target, curve, unequal_rounds
from ucfl.users import Scenario
from ucfl.wireless import Plan
from ucfl.wireless.planner import Limits, Worth

#: A stream more must be worth the time that it takes.
DEFAULT_TRADEOFF = "silhouette-per-time"


@dataclass(frozen=True)
class Question:
    """Whose streams are to be planned: W, the model's size, and runs to take times from.

    ``weights`` is None where no run has W: times and budgets can be asked for, streams cannot.
    ``of`` is the method that measured it, if a run has.
    """

    weights: NDArray[np.float64] | None
    model_bytes: float
    seed: int = 0
    of: str = ""
    runs: dict[str, list[Run]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Whose W it is; an empty text where no run has measured it."""
        return f"{self.of}, seed {self.seed}" if self.of else ""

    @classmethod
    def from_runs(cls, folder: Path) -> Question:
        """W of the first run in a folder by :func:`precedence`, and all runs for their times.

        A method whose links were compressed is another choice than the same without.
        """
        runs = by_label(runs_in(folder), _label, apart=("uplink", "downlink"))
        every = [run for each in runs.values() for run in each]
        learnt = [
            ((*precedence(run.algorithm, found), run.seed), run, found.weights)
            for run in every
            if (found := run.collaboration) is not None and found.weights is not None
        ]
        if not learnt:
            return cls(None, every[0].model_bytes, every[0].seed, runs=runs)
        _, run, weights = min(learnt, key=lambda one: one[0])
        label = run.algorithm.label
        return cls(weights.double().numpy(), run.model_bytes, run.seed, label, runs)

    @classmethod
    def from_file(cls, file: Path, model_bytes: float | None) -> Question:
        """A saved W: ``.npy``, ``.npz`` with one array, ``.csv``."""
        advice = "save W as .npy, .npz or .csv."
        if file.suffix == ".csv":
            weights = _read_csv(file, advice)
        elif file.suffix == ".npz":
            weights = next(iter(read_npz(file, advice).values()), np.empty(0))
        else:
            weights = read_npy(file, advice)
        if weights.dtype.kind not in "biuf":
            raise UcflError(f"{file} holds {weights.dtype} and no weights; {advice}")
        return cls(np.asarray(weights, dtype=np.float64), model_bytes or 0)

    @classmethod
    def from_scenario(cls, scenario: Scenario, seed: int = 0, device: str = "auto") -> Question:
        """W of a collaboration round that is done now."""
        fed = federation(scenario, seed, device=device)
        state = algorithms.find("user-centric").start(fed)
        weights: Any = state["weights"]
        return cls(weights.double().cpu().numpy(), fed.rows.bytes, seed)

    def plan(
        self,
        system: str,
        *,
        tradeoff: str = DEFAULT_TRADEOFF,
        limits: Limits | None = None,
        bits: float = 32.0,
    ) -> Plan:
        """Every k, and the one to take; ``bits`` a parameter are sent, of 32 in a whole model."""
        if self.weights is None:
            raise UcflError(
                "no run here has measured W, which a number of streams is chosen by: add a run of "
                "user-centric, write collaboration(state) in an algorithm of your own, or give a "
                "scenario; --within and --target need no W."
            )
        users, found = len(self.weights), wireless.find(system)
        if not isinstance(found, wireless.WirelessSystem) and not self.model_bytes:
            raise UcflError("a saved W does not say how large the model is: give --model-bytes.")
        choices = stream_choices(self.weights, min(users, MOST_STREAMS), self.seed)
        # Beyond those, only a stream for each user.
        choices.setdefault(users, (0.0, np.arange(users)))
        factor = bits / 32
        return wireless.plan(
            choices,
            found.serving(users, self.model_bytes).compressed(factor, factor),
            self.model_bytes * factor,
            worth=worth_function(tradeoff, users),
            name=tradeoff,
            slack=0.0 if _is_own(tradeoff) else NEARLY,
            limits=limits,
            own_weight=float(np.diag(self.weights).mean()),
        )

    def spendings(self, system: str) -> tuple[dict[str, Spending], Measure]:
        """Every stored method's seconds and joules on a network, and what it is judged by."""
        records = {label: [run.record for run in each] for label, each in self.runs.items()}
        return spendings(records, system), next(iter(records.values()))[0].measure

    def times(self, system: str, target: float | None = None) -> dict[str, Any]:
        """When each algorithm's mean is as good as the target (FedAvg's final, if not given)."""
        curves = {label: curve(runs, system) for label, runs in self.runs.items()}
        target = common_target(curves) if target is None else target
        if target is None:
            return {}
        rows = {
            label: {
                "streams": self.runs[label][0].traffic.down,
                "time": one.time_to(target),
                "final": float(one.mean[-1]),
                "end": float(one.times[-1]),
                "rounds": len(one.mean) - 1,
            }
            for label, one in curves.items()
        }
        order = sorted(rows, key=lambda label: rows[label]["time"])
        rounds = {
            label: [run.checkpoint.round for run in runs] for label, runs in self.runs.items()
        }
        return {
            "target": target,
            "metric": asdict(next(iter(curves.values())).measure),
            "algorithms": {label: rows[label] for label in order},
            "unequal": unequal_rounds(rounds),
        }


def precedence(algorithm: Facts, found: Collaboration) -> tuple[bool, bool, str]:
    """Of several methods that have measured W, the least is planned for, and shown first.

    That is one whose streams can be chosen, and one that has fewer streams than users already.
    """
    labels = found.labels
    planned = labels is not None and len(labels.unique()) < len(labels)
    return not algorithm.streams_can_be_chosen, not planned, algorithm.label


def worth_function(name: str, users: int) -> Worth:
    """A trade-off by name, or one's own as ``module:function`` of k, s and T_k / T_1.

    Beside those of :func:`tradeoff_function` there is ``silhouette-per-time[:λ]``:
    s · (T_1 / T_k)^λ with λ = 1, what a round's time buys.
    """
    word, colon, _ = name.partition(":")
    if _is_own(name):
        own: Worth = load(name, "trade-off")
        return own
    if word == "silhouette-per-time":
        power = number_in(name) if colon else 1.0
        return lambda k, s, slowdown: s * slowdown**-power
    score = tradeoff_function(name, users)
    return lambda k, s, slowdown: score(k, s)


def _read_csv(file: Path, advice: str) -> NDArray[np.float64]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file
            return np.loadtxt(file, delimiter=",", ndmin=2, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unreadable(file, error, advice) from error


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    return {
        "recommended": plan.recommended.streams,
        "reason": plan.reason,
        "unit": plan.unit,
        "streams": [asdict(option) for option in plan.options],
    }


def _label(run: Run) -> str:
    """The method, and what is done to its messages."""
    links = {"up": run.scenario.uplink, "down": run.scenario.downlink}
    said = [f"{how} {way}" for way, how in links.items() if how != "none"]
    return ", ".join([run.algorithm.label, *said])


def _is_own(name: str) -> bool:
    word, colon, _ = name.partition(":")
    return bool(colon) and not word.startswith("silhouette")
