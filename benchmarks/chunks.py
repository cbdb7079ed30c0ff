"""How many users to stack on this CPU: one round of rotated-mnist at several chunk sizes.

Run with: python benchmarks/chunks.py [repeats]
For each batch size, how many times faster a chunk of users is than users one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from side_by_side import entry, keep, side_by_side

from ucfl.runs import federation
from ucfl.users import find

CHUNKS = (1, 2, 4, 6, 10, 20)


def one_round(batch: int, chunk: int) -> Callable[[], Any]:
    scenario = find("rotated-mnist").change({"batch": batch})
    fed = federation(scenario, device="cpu", chunk=chunk)
    theta = fed.initial()
    return lambda: fed.train(theta, 1)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    entries = []
    for batch in (10, 16, 32, 64):
        contestants = {f"chunk of {chunk}": one_round(batch, chunk) for chunk in CHUNKS}
        times = side_by_side(contestants, repeats)
        entries += [
            entry(name, "chunk of 1", 20, times, batch=batch) for name in list(contestants)[1:]
        ]
    keep("chunks-cpu", entries)


if __name__ == "__main__":
    main()
