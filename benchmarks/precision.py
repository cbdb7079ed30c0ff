"""What a coarser product costs in accuracy and gains in time.

Run with: python benchmarks/precision.py DEVICE SCENARIO ROUNDS SEEDS
FedAvg and the paper's method with every precision, seed by seed; `ratio` is training time against
float32's, and accuracies are those of the last round, mean over users and seeds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from statistics import fmean
from typing import Any, get_args

from side_by_side import entry, keep, synchronise

import ucfl
from ucfl.execution import Precision
from ucfl.measure import ACCURACY

ALGORITHMS = ("fedavg", "user-centric")
PRECISIONS = [name for name in get_args(Precision) if name != "default"]


def main() -> None:
    device, name, rounds, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    scenario = ucfl.users.find(name).change({"rounds": rounds})
    users = [scenario.build(seed) for seed in range(seeds)]
    with tempfile.TemporaryDirectory() as folder:  # imports and libraries, at nobody's cost
        short = scenario.change({"rounds": 1})
        ucfl.run(short, "fedavg", users=users[0], device=device, out=f"{folder}/run")
    entries: list[dict[str, Any]] = []
    for algorithm in ALGORITHMS:
        times: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        final: dict[str, list[Any]] = {precision: [] for precision in PRECISIONS}
        for seed in range(seeds):
            for precision in PRECISIONS:
                with tempfile.TemporaryDirectory() as folder:
                    began = time.perf_counter()
                    run = ucfl.run(
                        scenario,
                        algorithm,
                        seed=seed,
                        users=users[seed],
                        device=device,
                        precision=precision,
                        out=f"{folder}/run",
                    )
                    synchronise()
                    times[precision].append(time.perf_counter() - began)
                    final[precision].append(run.per_user("test_accuracy")[-1])
        for precision in PRECISIONS:
            one = entry(precision, "float32", len(users[0]), times, algorithm=algorithm)
            one |= {"scenario": name, "rounds": rounds, "seeds": seeds}
            for who, over in (("mean", ACCURACY.mean), ("worst", ACCURACY.worst)):
                one[who] = round(fmean(over(each) for each in final[precision]), 2)
            entries.append(one)
        keep(f"precision-{device}", entries)  # each as it comes: a GPU's time may be short


if __name__ == "__main__":
    main()
