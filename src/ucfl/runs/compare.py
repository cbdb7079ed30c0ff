"""Several algorithms, several seeds, one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ucfl import algorithms as registry
from ucfl import distributed
from ucfl.errors import UcflError
from ucfl.runs.arrivals import over_seeds
from ucfl.runs.building import Engine, adjusted, federation, populated
from ucfl.runs.configuration import Configuration
from ucfl.runs.folder import Run, deviation
from ucfl.runs.loop import OnDivergence, OnNote, OnRound, train
from ucfl.users import Scenario


@dataclass(frozen=True)
class Comparison:
    """The runs of each algorithm, by its label, one per seed."""

    scenario: Scenario
    seeds: tuple[int, ...]
    runs: dict[str, list[Run]]

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
            "algorithms": {label: rows[label] for label in order},
        }

    def _row(self, runs: list[Run]) -> dict[str, Any]:
        summaries = [run.summary for run in runs]

        def summarised(who: str, statistic: Any) -> dict[str, float]:
            return {
                when: float(statistic([summary[who][when] for summary in summaries]))
                for when in ("final", "best")
            }

        return {
            "mean": summarised("mean", np.mean),
            "worst": summarised("worst", np.mean),
            "std": {who: summarised(who, deviation) for who in ("mean", "worst")},
            "newcomers": over_seeds([run.newcomers for run in runs]),
            "tested_model": runs[0].algorithm.tested_model,
            "traffic": asdict(runs[0].traffic) | {"start": asdict(runs[0].start_traffic)},
            "seconds": float(sum(run.checkpoint.seconds for run in runs)),
            "runs": [str(run.folder) for run in runs],
            "dropped": sum(len(run.dropped) for run in runs),
        }


def compare(
    scenario: str | Scenario,
    algorithms: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    out: str | Path = "runs",
    resume: bool = False,
    fresh: bool = False,
    on_divergence: OnDivergence = "drop",
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    **engine: Unpack[Engine],
) -> Comparison:
    """Run every algorithm with every seed; each run has its own folder under ``out``."""
    scenario = adjusted(scenario, rounds)
    chosen = [registry.find(text) for text in algorithms]
    labels = [algorithm.label for algorithm in chosen]
    if not chosen or not seeds:
        raise UcflError("a comparison needs at least one algorithm and one seed.")
    for words, kind in ((labels, "algorithm"), (list(seeds), "seed")):
        if len(set(words)) < len(words):
            raise UcflError(f"the {kind}s {', '.join(map(str, words))} name one twice.")
    runs: dict[str, list[Run]] = {label: [] for label in labels}
    for seed in seeds:
        scenario, users = populated(scenario, seed, None)
        fed = federation(scenario, seed, users=users, **engine)
        distributed.check_equal({"algorithms": labels, "seeds": seeds}, fed.device)
        for algorithm in chosen:
            algorithm.check(fed)
        for algorithm in chosen:
            name = Configuration.of(scenario, algorithm, fed, users).folder_name
            runs[algorithm.label].append(
                train(
                    scenario,
                    algorithm,
                    fed,
                    users,
                    out=Path(out) / name,
                    resume=resume,
                    fresh=fresh,
                    on_divergence=on_divergence,
                    on_round=on_round,
                    on_note=on_note,
                )
            )
    return Comparison(scenario, tuple(seeds), runs)
