"""Hyper-parameters by validation accuracy: one row of a CSV per run, kept as it finishes.

Run with: python benchmarks/grid.py OUT.csv SCENARIO ROUNDS SEEDS ALGORITHM [ALGORITHM …]
A row that is there already is not run again, so an interrupted grid goes on where it stopped.
On a GPU, steps are compiled.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import ucfl
from ucfl.measure import ACCURACY

FIELDS = [
    "scenario", "algorithm", "tested_model", "seed", "rounds", "validation_final",
    "validation_best", "mean_final", "mean_best", "worst_final", "worst_best", "best_round",
    "down", "seconds", "device", "data",
]  # fmt: skip


def main(out: Path, scenario: str, rounds: int, seeds: list[int], algorithms: list[str]) -> None:
    warnings.simplefilter("ignore", ucfl.UcflWarning)
    done = set()
    if out.exists():
        with out.open() as f:
            rows = csv.DictReader(f)
            done = {(r["scenario"], r["algorithm"], r["seed"], r["rounds"]) for r in rows}
    for seed in seeds:
        for algorithm in algorithms:
            if (scenario, algorithm, str(seed), str(rounds)) in done:
                continue
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as scratch:
                run = ucfl.run(
                    scenario, algorithm, seed=seed, rounds=rounds, out=Path(scratch) / "run",
                    checkpoint_seconds=1e9, compiled=torch.cuda.is_available(),
                )  # fmt: skip
                validation = run.per_user("validation_accuracy")
                test, chosen = run.per_user("test_accuracy"), ACCURACY.best_round(validation)
                row = {
                    "scenario": scenario,
                    "algorithm": algorithm,
                    "tested_model": run.algorithm.tested_model,
                    "seed": seed,
                    "rounds": rounds,
                    "validation_final": round(ACCURACY.mean(validation[-1]), 3),
                    "validation_best": round(ACCURACY.mean(validation[chosen]), 3),
                    "mean_final": round(ACCURACY.mean(test[-1]), 3),
                    "mean_best": round(ACCURACY.mean(test[chosen]), 3),
                    "worst_final": round(ACCURACY.worst(test[-1]), 3),
                    "worst_best": round(ACCURACY.worst(test[chosen]), 3),
                    "best_round": chosen,
                    "down": run.traffic.down,
                    "seconds": round(time.perf_counter() - began, 1),
                    "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
                    "data": ucfl.runs.folder.read_configuration(run.folder)["users"]["source"],
                }
            fresh = not out.exists()
            with out.open("a", newline="") as f:
                writer = csv.DictWriter(f, FIELDS)
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    target, name, count, which, *labels = sys.argv[1:]
    main(Path(target), name, int(count), [int(s) for s in which.split(",")], labels)
