"""How many users to stack on this CPU: one round of rotated-mnist at several chunk sizes.

Run with: .venv/bin/python benchmarks/chunks.py
Prints, for each batch size, the time of the plain path over that of each chunk size; the paths
take turns, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import statistics
import time

from ucfl.runs import federation
from ucfl.users import find

CHUNKS = (2, 4, 5, 10, 20)
PLAIN = 0
REPEATS = 5


def main() -> None:
    print("speed against the plain path, chunk = " + ", ".join(map(str, CHUNKS)))
    for batch in (10, 16, 32, 64):
        scenario = find("rotated-mnist").change({"batch": batch})
        feds = {PLAIN: federation(scenario, device="cpu", plain=True)}
        feds |= {chunk: federation(scenario, device="cpu", chunk=chunk) for chunk in CHUNKS}
        times: dict[int, list[float]] = {path: [] for path in feds}
        for repeat in range(REPEATS + 1):
            for path, fed in feds.items():
                theta = fed.initial()
                began = time.perf_counter()
                fed.train(theta, repeat)
                if repeat:  # the first is a warm-up
                    times[path].append(time.perf_counter() - began)
        medians = {path: statistics.median(values) for path, values in times.items()}
        ratios = [f"{medians[PLAIN] / medians[chunk]:.2f}" for chunk in CHUNKS]
        print(f"batch {batch:3d}: " + "  ".join(ratios))


if __name__ == "__main__":
    main()
