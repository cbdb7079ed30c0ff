"""The work that every library is given, and the form in which each reports its time.

FedAvg with m users: LeNet-5 with 62 classes from the same first weights, the same n random images
of 28x28 a user, SGD (lr 0.1, momentum 0.9), batch 64, one local epoch, the plain average, nothing
evaluated. This file needs torch and numpy only, so it is the same in every environment.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

LR, MOMENTUM, BATCH, CLASSES = 0.1, 0.9, 64, 62


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, help="of torch, where training is in this process")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--per-gpu", type=int, default=4, help="Flower's clients on a GPU at once")
    chosen = parser.parse_args()
    if chosen.rounds < 2:
        parser.error("the first round is not counted, so two are needed")
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    return chosen


@functools.cache
def arrays(users: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Images in bytes [m, n, 1, 28, 28] and labels [m, n], the same in every process."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (users, examples, 1, 28, 28), dtype=np.uint8)
    return images, rng.integers(0, CLASSES, (users, examples))


@functools.cache
def tensors(users: int, examples: int, device: str) -> tuple[Tensor, Tensor]:
    """The same as floats between 0 and 1 on the device: whoever takes these converts nothing."""
    images, labels = arrays(users, examples)
    return (torch.from_numpy(images).float() / 255).to(device), torch.from_numpy(labels).to(device)


def lenet5() -> nn.Sequential:
    """The same layers as ``ucfl.federation.models.lenet5``; the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, CLASSES),
        )


def expected_steps(users: int, examples: int) -> int:
    """Optimiser steps in a round."""
    return users * math.ceil(examples / BATCH)


class Steps:
    """Counts the steps of every ``torch.optim`` optimiser in this process."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._step)

    def _step(self, *_: object) -> None:
        self.count += 1


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def report(
    library: str,
    package: str,
    chosen: argparse.Namespace,
    marks: list[float],
    steps: float,
    weights: list[Tensor],
    **more: Any,
) -> None:
    """Print one line of JSON, or fail where the work was not done.

    ``marks``: the time before the first round and after every round; ``steps``: of the optimiser in
    a round; ``weights``: the parameters of the last global model, in the order of ``lenet5()``.
    """
    expected = expected_steps(chosen.users, chosen.examples)
    if steps != expected:
        raise SystemExit(f"{library}: {steps} steps in a round instead of {expected}")
    if len(marks) != chosen.rounds + 1:
        raise SystemExit(f"{library}: {len(marks) - 1} rounds instead of {chosen.rounds}")
    first = torch.cat([p.detach().flatten() for p in lenet5().parameters()])
    last = torch.cat([torch.as_tensor(w).detach().cpu().float().flatten() for w in weights])
    moved = float((last - first).norm() / first.norm())
    if not (math.isfinite(moved) and moved > 1e-3):
        raise SystemExit(f"{library}: the model moved by {moved}")
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    line = {
        "library": library,
        "version": version(package),
        "users": chosen.users,
        "examples": chosen.examples,
        "rounds": chosen.rounds,
        "seconds_per_round": round(statistics.median(seconds[1:]), 5),
        "all_seconds": [round(s, 5) for s in seconds],
        "steps_per_round": expected,
        "moved": round(moved, 4),
        "device": chosen.device,
        "torch": torch.__version__,
        **more,
    }
    print(json.dumps(line), flush=True)
