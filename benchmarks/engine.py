"""One round of local training for all users, against a plain loop with torch.optim.SGD.

Run with: python benchmarks/engine.py {gpu|cpu} [repeats [models]]
The work: LeNet-5 with 62 classes, batch 64, one epoch of 1,024 images a user (256 on a CPU with
more than 20 users), the same images in the same process. The loop is what one writes without a
library: a copy of the model, an optimiser, batches from a random permutation; nothing is moved
between devices in it.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from side_by_side import entry, keep, random_users, side_by_side
from torch import nn

from ucfl import Federation, LocalTraining, Users
from ucfl.federation import create

TRAINING = LocalTraining(lr=0.1, momentum=0.9, batch=64, epochs=1)


class Residual(nn.Module):
    """A model that nobody prepared for: group normalisation, GELU, a skip, strides."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Linear(16 * 7 * 7, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.norm(self.first(x)))
        h = h + torch.nn.functional.gelu(self.second(h))
        return self.last(torch.nn.functional.max_pool2d(h, 2).flatten(1))


def model_of(name: str) -> nn.Module:
    return Residual(62) if name == "residual" else create(name, (1, 28, 28), 62, seed=0)


def plain_loop(users: Users, model: nn.Module, device: str) -> Callable[[], None]:
    inputs, labels = users.train.inputs.to(device), users.train.targets.to(device)
    model = model.to(device)

    def run() -> None:
        for user in range(len(users)):
            net = copy.deepcopy(model).train()
            optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            order = torch.randperm(inputs.shape[1], device=device)
            for batch in order.split(64):
                x = inputs[user, batch].float() / 255
                loss = nn.functional.cross_entropy(net(x), labels[user, batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    return run


def ours(users: Users, model: nn.Module, device: str, **options: Any) -> Callable[[], Any]:
    fed = Federation(users, model, training=TRAINING, device=device, **options)
    theta = fed.initial()
    return lambda: fed.train(theta, 1)


def in_python(users: Users) -> Callable[[], Any]:
    """Ours with Python between operations, which threads wait for."""
    from ucfl.execution import tracing

    with mock.patch.object(tracing, "without_gil", lambda graph: graph):
        run = ours(users, model_of("lenet5"), "cpu")
        run()  # makes the graphs
    return run


def gpu(repeats: int, models: list[str]) -> None:
    entries = []
    for name, m in (("lenet5", 100), ("lenet5", 20), ("vgg", 100), ("residual", 100), ("mlp", 100)):
        if models and name not in models:
            continue
        users = random_users(m, 1024)
        for precision in ("tf32", "float32"):
            allowed = precision == "tf32"
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
            began = time.perf_counter()
            traced = ours(users, model_of(name), "cuda")
            traced()
            first = time.perf_counter() - began
            began = time.perf_counter()
            compiled = ours(users, model_of(name), "cuda", compiled=True)
            compiled()
            slow = time.perf_counter() - began
            contestants = {
                "loop": plain_loop(users, model_of(name), "cuda"),
                "traced": traced,
                "compiled": compiled,
            }
            times = side_by_side(contestants, repeats)
            more = {"model": name, "precision": precision}
            entries.append(entry("traced", "loop", m, times, **more, first_round=round(first, 1)))
            entries.append(entry("compiled", "loop", m, times, **more, first_round=round(slow, 1)))
            keep("engine-gpu", entries)  # each as it comes: a GPU's time may be short
            if (name, m) != ("lenet5", 100):
                break  # the other precision is shown once


def cpu(repeats: int, models: list[str]) -> None:
    entries = []
    for m in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500):
        users = random_users(m, 1024 if m <= 20 else 256, held=8)
        contestants = {
            "loop": plain_loop(users, model_of("lenet5"), "cpu"),
            "ours": ours(users, model_of("lenet5"), "cpu"),
        }
        if m == 20:
            contestants["ours, in Python"] = in_python(users)
            contestants["compiled"] = ours(users, model_of("lenet5"), "cpu", compiled=True)
        # Short rounds are noisy, long ones take long.
        times = side_by_side(contestants, 5 * repeats if m <= 5 else repeats if m <= 20 else 3)
        for what in list(contestants)[1:]:
            entries.append(entry(what, "loop", m, times, model="lenet5"))
            print(entries[-1], flush=True)
    keep("engine-cpu", entries)


if __name__ == "__main__":
    where, repeats = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    {"gpu": gpu, "cpu": cpu}[where](repeats, sys.argv[3:])
