"""A round of 1,000 users of whom 50 take part, against a round of a federation of 50 users.

Run with: python benchmarks/participation.py {cpu|gpu} [repeats]
FedAvg and Ditto with LeNet-5, batch 64, one epoch of 256 and of 1,024 images a user (on a CPU, of
256); evaluation is not part of it (everyone is evaluated, whoever takes part). The two take turns
in one process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from engine import TRAINING, model_of
from side_by_side import entry, keep, random_users, side_by_side

from ucfl import Federation
from ucfl.algorithms import find
from ucfl.federation import Cohorts
from ucfl.users import Participation

MANY, FEW = 1000, 50


def rounds(algorithm: str, users: int, images: int, device: str) -> Callable[[], None]:
    population = random_users(users, images, held=8)
    cohorts = Cohorts.of(
        population, 0, Participation(number=FEW) if users > FEW else Participation()
    )
    fed = Federation(
        population, model_of("lenet5"), training=TRAINING, device=device, cohort=cohorts
    )
    method = find(algorithm)
    state, t = method.start(fed), 0

    def run() -> None:
        nonlocal state, t
        t += 1
        state = method.round(fed.among(fed.cohort(t)), state, t)

    return run


def main(where: str, repeats: int) -> None:
    device, entries = "cuda" if where == "gpu" else "cpu", []
    for images in (256, 1024) if where == "gpu" else (256,):
        for algorithm in ("fedavg", "ditto"):
            contestants = {
                "50 users": rounds(algorithm, FEW, images, device),
                "50 of 1,000 users": rounds(algorithm, MANY, images, device),
            }
            times = side_by_side(contestants, repeats, warm_up=2)
            more = {"algorithm": algorithm, "images": images}
            entries.append(entry("50 users", "50 of 1,000 users", FEW, times, **more))
            keep(f"participation-{where}", entries)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7)
