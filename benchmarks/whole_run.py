"""What a whole run costs beside its training: start, data, evaluation, checkpoints, history.

Run with: python benchmarks/whole_run.py DEVICE ROUNDS
EMNIST with rotations, 100 users, FedAvg, as `ucfl run` does it (evaluation on both held-out
splits every round, a checkpoint every ten seconds), in one process from the first import on;
where EMNIST is not at hand, as many random images. What training alone takes is measured in a
second, shorter run, which waits for the device before and after. `ratio` is the whole run's, from
the first import on; `ratio_of_a_round` that of the median round: what long runs tend to.
"""

import sys
import time

BEGAN = time.perf_counter()

import tempfile  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from side_by_side import keep, random_users, synchronise  # noqa: E402

import ucfl  # noqa: E402
from ucfl.errors import UcflError  # noqa: E402
from ucfl.federation import Federation  # noqa: E402

imported = time.perf_counter() - BEGAN


def metered(name: str) -> list[float]:
    """Seconds of every call of a method of the federation, until the device is done with it."""
    original, seconds = getattr(Federation, name), list[float]()

    def method(self: Federation, *args: Any, **options: Any) -> Any:
        synchronise()
        began = time.perf_counter()
        result = original(self, *args, **options)
        synchronise()
        seconds.append(time.perf_counter() - began)
        return result

    setattr(Federation, name, method)
    return seconds


def main() -> None:
    device, rounds = sys.argv[1], int(sys.argv[2])
    scenario = ucfl.users.find("emnist-covariate-shift").change({"rounds": rounds})
    began = time.perf_counter()
    try:
        users = scenario.build(0)
    except UcflError:
        users = random_users(100, 930, held=116)
    data = time.perf_counter() - began
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"users": users, "device": device}
        began = time.perf_counter()
        ucfl.run(
            scenario,
            "fedavg",
            out=f"{folder}/whole",
            on_round=lambda _: ends.append(time.perf_counter()),
            **options,
        )
        whole = imported + data + time.perf_counter() - began
        trained, evaluated = metered("train"), metered("accuracy")
        ucfl.run(scenario, "fedavg", rounds=min(rounds, 50), out=f"{folder}/metered", **options)
    a_round = median(np.diff(ends))
    a_training, an_evaluation = median(trained), 2 * median(evaluated)
    entry = {
        "what": "all but training",
        "against": "training",
        "users": len(users),
        "rounds": rounds,
        "ratio": round(whole / (rounds * a_training) - 1, 3),
        "ratio_of_a_round": round(a_round / a_training - 1, 3),
        "round_milliseconds": round(1e3 * a_round, 2),
        "training_milliseconds": round(1e3 * a_training, 2),
        "evaluation_milliseconds": round(1e3 * an_evaluation, 2),
        "whole_seconds": round(whole, 2),
        "import_seconds": round(imported, 2),
        "data_seconds": round(data, 2),
        "first_round_seconds": round(ends[0] - began, 2),
    }
    keep(f"whole-run-{device}", [entry])


if __name__ == "__main__":
    main()
