"""Cost per user as users grow: training, accuracy, the collaboration round, streams.

Run with: python benchmarks/scale.py {gpu|cpu}
LeNet-5 with 62 classes, batch 64, one epoch of 256 images (GPU; 64 on a CPU) a user.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from side_by_side import keep, random_users, synchronise

from ucfl import Federation, LocalTraining
from ucfl.collaboration import choose_streams, collaboration_weights
from ucfl.federation import create

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    synchronise()
    began = time.perf_counter()
    result = work()
    synchronise()
    return time.perf_counter() - began, result


def measure(m: int, n: int, device: str) -> dict[str, Any]:
    users = random_users(m, n, held=16)
    training = LocalTraining(lr=0.1, momentum=0.9, batch=64)
    model = create("lenet5", (1, 28, 28), 62, seed=0)
    fed = Federation(users, model, training=training, device=device)
    theta = fed.initial()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first, _ = timed(lambda: fed.train(theta, 1))
    seconds, trained = timed(lambda: fed.train(theta, 2))
    fed.metric(trained)
    accuracy, _ = timed(lambda: fed.metric(trained))
    together, found = timed(lambda: fed.collaboration_round(theta, 1 / 3))
    weighing, weights = timed(lambda: collaboration_weights(found.full, found.variances, fed.sizes))
    streams, plan = timed(lambda: choose_streams(weights.cpu(), max_streams=20))
    memory = (
        torch.cuda.max_memory_allocated()
        if device == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return {
        "users": m,
        "examples": n,
        "executor": str(fed.executor),
        "first_round_seconds": round(first, 2),
        "round_seconds": round(seconds, 4),
        "microseconds_per_user": round(1e6 * seconds / m, 1),
        "accuracy_seconds": round(accuracy, 4),
        "collaboration_seconds": round(together, 3),
        "weights_seconds": round(weighing, 3),
        "streams_seconds": round(streams, 2),
        "streams": plan.count,
        "peak_gigabytes": round(memory / 1e9, 2),
    }


def main() -> None:
    device = sys.argv[1]
    sizes = (100, 1000, 10_000) if device == "gpu" else (20, 100, 500, 1000)
    entries = []
    for m in sizes:
        n = 256 if device == "gpu" else 64
        entries.append(measure(m, n, "cuda" if device == "gpu" else "cpu"))
        print(entries[-1], flush=True)
    keep(f"scale-{device}", entries)


if __name__ == "__main__":
    main()
