"""Hard models, six unequal users, every executor, any number of threads: as in a plain loop.

The loop is `torch.optim.SGD` over a copy of the model for each user. The long form has all
executors and repeats each case twenty times: what depends on the order of threads does not
show in one.
"""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from conftest import DEVICE, close
from execution.hard_models import (
    CLASSES,
    HARD,
    Clamps,
    Counts,
    Draws,
    Remembers,
    Rounded,
    ShowsItsMean,
    TimeMajor,
)
from federation.reference import flat, load, train_one_user
from ucfl.errors import UcflError, UcflWarning
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.draws import orders
from ucfl.users import Users

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")

SIZES, BATCH, LR, MOMENTUM = [23, 10, 40, 4, 18, 2], 4, 0.05, 0.9
#: Three users at a time, six, one in each thread; and one after another.
EXECUTORS = {"chunk 3": {"chunk": 3}, "chunk 6": {"chunk": 6}, "chunk 1": {"chunk": 1}}
EXECUTORS["plain"] = {"plain": True}


def six_users():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 1, 8, 8)), rng.integers(0, CLASSES, n)) for n in SIZES]
    return Users.from_arrays(pairs, pairs, pairs, classes=CLASSES)


def made(name):
    torch.manual_seed(3)
    return HARD[name]().double()


def expected(model, users, last="keep"):
    """One round of the plain loop; each user's new row, and its accuracy with it."""
    order = orders(0, 1, users.ids, users.train.sizes, 2, max(SIZES))
    rows, accuracies = [], []
    for i, n in enumerate(SIZES):
        x, y = users.train.inputs[i].double(), users.train.targets[i]
        start = flat(model)
        rows.append(
            train_one_user(model, start, x, y, order[i, :, :n], BATCH, LR, MOMENTUM, last=last)
        )
        module = copy.deepcopy(model)
        load(module, rows[-1])
        with torch.no_grad():
            right = module.eval()(x[:n]).argmax(1) == y[:n]
        accuracies.append(right.double().mean())
    return torch.stack(rows), torch.stack(accuracies)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def off(name, executor, count, threads, repeats):
    """How far each repetition is from the loop at most: training, accuracies."""
    threads(count)
    users, model = six_users(), made(name)
    rows, accuracies = expected(model, users)
    training = LocalTraining(lr=LR, momentum=MOMENTUM, batch=BATCH, epochs=2, last_batch="keep")
    fed = Federation(users, model, training=training, device=DEVICE, **EXECUTORS[executor])
    differences = []
    for _ in range(repeats):
        theta = fed.train(fed.initial(), 1).cpu()
        right = fed.metric(theta.to(fed.device)).cpu()
        differences.append(
            (float((theta - rows).abs().max()), float((right - accuracies).abs().max()))
        )
    return differences


@pytest.mark.parametrize("name", HARD)
def test_hard_models_train_as_in_a_loop(name, threads):
    """Two threads with three users each, where models were mixed up once."""
    for trained, evaluated in off(name, "chunk 3", 2, threads, 1):
        assert trained < 1e-9
        assert evaluated < 1e-9


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", HARD)
def test_hard_models_train_as_in_a_loop_twenty_times(name, executor, count, threads):
    for trained, evaluated in off(name, executor, count, threads, 20):
        assert trained < 1e-9
        assert evaluated < 1e-9


ONE_BY_ONE = {
    *("branch on weights", "branch on data", "gradient reversal", "coupled examples"),
    *("a head of zeros", "statistics of the batch", "a hook on BatchNorm", "BatchNorm over time"),
}


def test_dropout_in_a_time_major_layer_does_not_depend_on_padding():
    users, training = six_users(), LocalTraining(batch=BATCH, lr=LR, last_batch="keep")
    torch.manual_seed(3)
    model = TimeMajor().double()
    theta = []
    for path in ({"chunk": 3}, {"plain": True}):
        fed = Federation(users, model, training=training, device=DEVICE, **path)
        theta.append(fed.train(fed.initial(), 1))
    assert close(*theta, atol=1e-9)


def test_whole_numbers_that_a_row_cannot_hold_are_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    model.register_buffer("codes", torch.tensor([2**24 + 1]))
    with pytest.raises(UcflError, match="codes holds values"):
        Federation(six_users(), model)


STACKABLE = sorted(set(HARD) - ONE_BY_ONE)


@pytest.mark.filterwarnings("error::ucfl.errors.UcflWarning")
@pytest.mark.parametrize("name", STACKABLE)
def test_what_can_be_stacked_is(name):
    fed = Federation(
        six_users(), made(name), training=LocalTraining(batch=BATCH), device=DEVICE, chunk=3
    )
    theta = fed.train(fed.initial(), 1)
    fed.metric(theta)
    assert "stacked" in str(fed.executor)
    assert fed.executor.traces > 0


@pytest.mark.filterwarnings("default::ucfl.errors.UcflWarning")
@pytest.mark.parametrize("name", sorted(set(HARD) - set(STACKABLE)))
def test_what_cannot_be_stacked_is_said_once_and_shown(name):
    def train_and_look():
        fed = Federation(
            six_users(), made(name), training=LocalTraining(batch=BATCH), device=DEVICE, chunk=3
        )
        theta = fed.train(fed.initial(), 1)
        fed.train(theta, 2)
        fed.metric(theta)
        return fed

    with pytest.warns(UcflWarning, match="one after another") as said:
        fed = train_and_look()
    assert sum(issubclass(each.category, UcflWarning) for each in said) == 1
    assert "plain" in str(fed.executor)


GENERATOR = torch.Generator().manual_seed(0)
REFUSED = {
    "PyTorch's generator": lambda: Draws(torch.rand_like),
    "functional dropout": lambda: Draws(lambda h: nn.functional.dropout(h, 0.5)),
    "Python's random": lambda: Draws(lambda h: random.random()),
    "NumPy's generator": lambda: Draws(lambda h: np.random.rand()),  # noqa: NPY002
    "a generator of its own": lambda: Draws(
        lambda h: torch.rand(h.shape, generator=GENERATOR).to(h)
    ),
    "attention's dropout": lambda: nn.Sequential(
        nn.Flatten(1, 2), nn.TransformerEncoderLayer(8, 2, 8), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
    "alpha dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.AlphaDropout(0.2), nn.Linear(8, CLASSES)
    ),
    "a counter": Counts,
    "a hidden state": Remembers,
    "what evaluation reads": ShowsItsMean,
    "parameters": Clamps,
    "an embedding with max_norm": lambda: nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 6),
        Rounded(),
        nn.Embedding(9, 4, max_norm=0.1),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_executor_takes_is_refused_in_one_sentence(name):
    with pytest.raises(UcflError, match=r"random numbers|keeps|two answers|writes to") as refusal:
        Federation(six_users(), REFUSED[name](), training=LocalTraining(batch=BATCH), device=DEVICE)
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)
