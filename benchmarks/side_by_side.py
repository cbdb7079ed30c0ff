"""Contestants take turns, so that a slow moment of the machine hits all; results as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucfl import Users

RESULTS = Path(__file__).parent / "results"


def side_by_side(
    contestants: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each contestant in each repeat; the first round of turns is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(warm_up + repeats):
        for name, work in contestants.items():
            synchronise()
            began = time.perf_counter()
            work()
            synchronise()
            if repeat >= warm_up:
                times[name].append(time.perf_counter() - began)
    return times


def entry(
    what: str, against: str, users: int, times: Mapping[str, list[float]], **more: Any
) -> dict[str, Any]:
    """``ratio``: how many times faster ``what`` is than ``against``; median and spread of turns."""
    ratios = [b / a for a, b in zip(times[what], times[against], strict=True)]
    return {
        "what": what,
        "against": against,
        "users": users,
        "ratio": round(statistics.median(ratios), 2),
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "seconds": round(statistics.median(times[what]), 5),
        "seconds_against": round(statistics.median(times[against]), 5),
        "repeats": len(ratios),
        **more,
    }


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def keep(name: str, entries: list[dict[str, Any]]) -> None:
    """Write the entries with machine, versions and command; print them."""
    folder = Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    command = "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    result = {"command": command, "machine": machine(), "entries": entries}
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    for one in entries:
        print(json.dumps(one), flush=True)


def random_users(m: int, n: int, held: int = 64, classes: int = 62, seed: int = 0) -> Users:
    """m users with n random images of EMNIST's shape each."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> list[tuple[Any, Any]]:
        images = rng.integers(0, 256, (m, count, 1, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, classes, (m, count))
        return list(zip(images, labels, strict=True))

    return Users.from_arrays(draw(n), draw(held), draw(held), classes=classes)
