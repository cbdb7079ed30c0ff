"""What becomes of a last batch that is not full: dropped, scaled by count / B, or kept as it is.

Run with: python benchmarks/last_batch.py SCENARIO ROUNDS SEED… (writes results/last-batch-*.json)
Mean and worst user's test accuracy at the round that validation accuracy chooses and at the last
one, for each form, algorithm and seed. `python docs/tables.py` makes the table of all of them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import ucfl
from ucfl import users

ALGORITHMS = ("local", "fedavg", "ditto", "scaffold", "scaffold:lr=0.03")


def main(name: str, rounds: int, seeds: list[int]) -> None:
    for seed in seeds:
        entries = []
        for form in ("drop", "scale", "keep"):
            scenario = users.find(name).change({"last_batch": form})
            for algorithm in ALGORITHMS:
                with tempfile.TemporaryDirectory() as folder:
                    run = ucfl.run(
                        scenario, algorithm, seed=seed, rounds=rounds, out=f"{folder}/run"
                    )
                    entries.append(
                        {
                            "scenario": name,
                            "rounds": rounds,
                            "seed": seed,
                            "last_batch": form,
                            "algorithm": algorithm,
                            "users": run.users,
                            "mean": run.summary["mean"],
                            "worst": run.summary["worst"],
                            "best_round": run.summary["best_round"],
                            "device": run.about["machine"]["device"],
                            "versions": run.about["versions"],
                        }
                    )
                print(json.dumps(entries[-1]), flush=True)
        folder = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
        file = folder / f"last-batch-{name}-seed{seed}.json"
        file.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(seed) for seed in sys.argv[3:]])
