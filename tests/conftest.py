"""Small federations that train in milliseconds."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

from ucfl.execution import choice
from ucfl.federation import Federation, LocalTraining, create
from ucfl.users import Users

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # where Triton is there at all

settings.register_profile("ucfl", deadline=None)  # a busy machine is no failure
settings.load_profile("ucfl")

#: Where the federations of the tests live: `UCFL_TEST_DEVICE=cuda make test` asks the GPU.
DEVICE = os.environ.get("UCFL_TEST_DEVICE", "cpu")

pytest_plugins = ["report.fixtures", "users.fixtures", "tiers"]

SHARED = Path(__file__).parent.parent.parent / "shared"


def make_users(sizes, *, classes=3, shape=(1, 6, 6), groups=None, seed=0, held=4):
    """Users whose labels can be learnt: each class is a random pattern plus noise."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(classes, *shape))

    def draw(n):
        labels = rng.integers(0, classes, n)
        return (patterns[labels] + 0.5 * rng.normal(size=(n, *shape))), labels

    return Users.from_arrays(
        [draw(n) for n in sizes],
        [draw(held) for _ in sizes],
        [draw(held) for _ in sizes],
        classes=classes,
        groups=groups,
    )


def make_federation(
    users,
    model="mlp",
    *,
    seed=0,
    double=True,
    chunk=None,
    plain=False,
    precision="default",
    **training,
):
    module = create(model, users.input_shape, users.classes, seed=seed)
    settings = {"lr": 0.05, "batch": 8, **training}
    return Federation(
        users,
        module.double() if double else module,
        training=LocalTraining(**settings),
        seed=seed,
        chunk=chunk,
        plain=plain,
        precision=precision,
        device=DEVICE,
    )


def normalised(shape, classes):
    """A small model with batch normalisation."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.BatchNorm1d(16)),
        *(nn.ReLU(), nn.Linear(16, classes)),
    )


#: Models that a method cannot serve, and what it is tested with instead.
INSTEAD = {
    ("fedbn", "mlp"): "conftest:normalised",
    ("fedbn", "logistic"): "conftest:normalised",
    ("lg-fedavg", "logistic"): "mlp",
}


def model_for(name, wanted="mlp"):
    """The model that is wanted, or one like it that the method can serve."""
    return INSTEAD.get((name, wanted), wanted)


def close(ours, theirs, **tolerances):
    """Whether two tensors are, wherever they live: references are computed on the CPU."""
    return torch.allclose(ours.cpu(), theirs.cpu(), **tolerances)


@pytest.fixture
def traced(monkeypatch):
    """Trace every step, also where the federation is too small for that to pay."""
    monkeypatch.setattr(choice, "WORTH_TRACING", 0)


@pytest.fixture
def unequal_users():
    """Five users, from a single example to several batches, in two groups."""
    return make_users([20, 8, 1, 33, 13], groups=[0, 0, 1, 1, 1])


@pytest.fixture(scope="session")
def emnist(tmp_path_factory):
    """The data folder with the real EMNIST files that lie beside the project, where they do."""
    folder = SHARED / "data"
    if not (folder / "emnist").is_dir():
        pytest.skip("the real EMNIST files are not in ../shared/data")
    return folder


@pytest.fixture(autouse=True)
def signals():
    """As they were: the command line ignores them at its end, and child processes inherit that."""
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in found.items():
        signal.signal(number, handler)
