"""What a whole run costs beside its training: start, data, evaluation, checkpoints, history.

Run with: python benchmarks/whole_run.py DEVICE ROUNDS
EMNIST with rotations, 100 users, FedAvg, as `ucfl run` does it (evaluation on both held-out
splits every round, a checkpoint every ten seconds), in one process from the first import on;
where EMNIST is not at hand, as many random images.
"""

import sys
import time

BEGAN = time.perf_counter()

import tempfile  # noqa: E402
from typing import Any  # noqa: E402

from side_by_side import keep, random_users, synchronise  # noqa: E402

import ucfl  # noqa: E402
from ucfl.errors import UcflError  # noqa: E402
from ucfl.federation import Federation  # noqa: E402

imported = time.perf_counter() - BEGAN


def metered(name: str, spent: dict[str, float]) -> None:
    """Count the seconds of a method of the federation, until the device is done with them."""
    original = getattr(Federation, name)

    def method(self: Federation, *args: Any, **options: Any) -> Any:
        synchronise()
        began = time.perf_counter()
        result = original(self, *args, **options)
        synchronise()
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
        return result

    setattr(Federation, name, method)


def main() -> None:
    device, rounds = sys.argv[1], int(sys.argv[2])
    scenario = ucfl.users.find("emnist-covariate-shift").change({"rounds": rounds})
    began = time.perf_counter()
    try:
        users = scenario.build(0)
    except UcflError:
        users = random_users(100, 930, held=116)
    data = time.perf_counter() - began
    spent: dict[str, float] = {}
    metered("train", spent)
    metered("accuracy", spent)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ucfl.run(scenario, "fedavg", users=users, device=device, out=f"{folder}/run")
        run = time.perf_counter() - began
    train = spent["train"]
    rest = run - train
    entry = {
        "what": "all but training",
        "against": "training",
        "users": len(users),
        "rounds": rounds,
        "ratio": round((imported + data + rest) / train, 3),
        "ratio_without_import_and_data": round(rest / train, 3),
        "training_seconds": round(train, 2),
        "evaluation_seconds": round(spent["accuracy"], 2),
        "import_seconds": round(imported, 2),
        "data_seconds": round(data, 2),
        "other_seconds": round(rest - spent["accuracy"], 2),
    }
    keep(f"whole-run-{device}", [entry])


if __name__ == "__main__":
    main()
