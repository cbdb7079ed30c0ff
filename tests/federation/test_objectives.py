"""Each objective against loops with ``torch.nn.functional`` and scikit-learn, in float64."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn import metrics as sk
from torch import nn

from conftest import DEVICE, close
from federation.reference import batches, flat, load
from ucfl import algorithms
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining, Metric, Objective, objective
from ucfl.federation.draws import orders
from ucfl.users import IGNORED, Users

SIZES, BATCH, EPOCHS, RATE = [20, 8, 1, 33, 13], 8, 2, 0.05
TESTS = [9, 0, 4, 30, 1]
EXECUTORS = [{"chunk": 2}, {"chunk": 5}, {"plain": True}]
CLASSES, LENGTH = 5, 6


class Sequences(nn.Module):
    """A class for each position, from the tokens so far."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 7)
        self.mix = nn.Conv1d(7, 9, 2, padding=1)
        self.head = nn.Linear(9, CLASSES)

    def forward(self, tokens):
        hidden = self.mix(self.embedding(tokens).transpose(1, 2))[..., :-1].tanh()
        return self.head(hidden.transpose(1, 2))


@dataclass(frozen=True)
class Case:
    """An objective, data and a model for it, and the same loss in PyTorch's own functions."""

    objective: Any
    target: Any
    model: Any
    loss: Any
    inputs: Any = None

    def users(self):
        rng = np.random.default_rng(3)
        inputs = self.inputs or (lambda rng, n: rng.normal(size=(n, 4)).astype(np.float32))

        def pairs(sizes):
            return [(inputs(rng, n), self.target(rng, n)) for n in sizes]

        classes = CLASSES if self.target(rng, 1).dtype.kind == "i" else None
        return Users.from_arrays(pairs(SIZES), pairs(TESTS), pairs(TESTS), classes=classes)

    def made(self):
        torch.manual_seed(0)
        return self.model().double()


def small(outputs):
    return lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def numbers(*shape):
    return lambda rng, n: (2 + 3 * rng.normal(size=(n, *shape))).astype(np.float32)


def tokens(rng, n):
    return rng.integers(0, CLASSES, (n, LENGTH))


def next_tokens(rng, n):
    """Sequences of unequal lengths, one position at least."""
    found = rng.integers(0, CLASSES, (n, LENGTH))
    ends = rng.integers(1, LENGTH + 1, (n, 1))
    return np.where(np.arange(LENGTH) < ends, found, IGNORED)


def each_sequence(out, y):
    """The mean over sequences of the mean over their positions, with PyTorch's ignore_index."""
    each = [F.cross_entropy(o, t, ignore_index=IGNORED) for o, t in zip(out, y, strict=True)]
    return torch.stack(each).mean()


def huber(outputs, targets):
    return F.huber_loss(outputs[:, 0], targets.to(outputs.dtype), reduction="none")


CASES = {
    "classification": Case(
        "classification", lambda rng, n: rng.integers(0, CLASSES, n), small(5), F.cross_entropy
    ),
    "regression": Case(
        "regression", numbers(), small(1), lambda out, y: F.mse_loss(out[:, 0], y.double())
    ),
    "absolute": Case(
        "regression:loss=absolute", numbers(3), small(3), lambda out, y: F.l1_loss(out, y.double())
    ),
    "next-token": Case("next-token", next_tokens, Sequences, each_sequence, tokens),
    "own": Case(
        Objective(huber, {"small": lambda out, y: (huber(out, y) < 1).double()}, name="huber"),
        numbers(),
        small(1),
        lambda out, y: F.huber_loss(out[:, 0], y.double()),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def federation(case, **options):
    training = LocalTraining(lr=RATE, momentum=0.9, batch=BATCH, epochs=EPOCHS)
    found = objective(case.objective)
    return Federation(
        case.users(), case.made(), objective=found, training=training, device=DEVICE, **options
    )


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
def test_training_is_a_loop_with_pytorchs_loss(case, executor, traced):
    fed = federation(case, **executor)
    users, rows = case.users(), []
    for i, n in enumerate(SIZES):
        model = case.made().train()
        optimiser = torch.optim.SGD(model.parameters(), RATE, 0.9)
        x, y = users.train.inputs[i], users.train.targets[i]
        x = x.double() if x.is_floating_point() else x
        for epoch in orders(0, 1, users.ids, users.train.sizes, EPOCHS, max(SIZES))[i, :, :n]:
            for chosen in batches(epoch, BATCH):
                optimiser.zero_grad()
                case.loss(model(x[chosen]), y[chosen]).backward()
                optimiser.step()
        rows.append(flat(model))
    assert close(fed.train(fed.initial(), 1), torch.stack(rows), rtol=0, atol=1e-9)


def confidence_gaps(probabilities, y):
    """The expected calibration error as Guo et al. write it, bin by bin."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    total = 0.0
    for b in range(15):
        here = (confidence >= b / 15) & (confidence < (b + 1) / 15 if b < 14 else True)
        if here.any():
            total += here.mean() * abs(right[here].mean() - confidence[here].mean())
    return total


def independent(name, out, y):
    """Metrics of one user's outputs and targets, without our code."""
    if name == "own":
        return {
            "small": (F.huber_loss(out[:, 0], y.double(), reduction="none") < 1).double().mean()
        }
    if name in ("regression", "absolute"):
        guess, real = out.reshape(y.shape).numpy(), y.double().numpy()
        return {
            "squared_error": sk.mean_squared_error(real, guess),
            "absolute_error": sk.mean_absolute_error(real, guess),
            "r2": sk.r2_score(real, guess, multioutput="variance_weighted")
            if len(y) > 1
            else math.nan,
        }
    if name == "next-token":
        counted = y != IGNORED
        loss = F.cross_entropy(out[counted], y[counted])
        right = (out.argmax(-1) == y)[counted].double().mean()
        return {"accuracy": right, "loss": loss, "perplexity": loss.exp()}
    guess = out.argmax(1)
    recalls = [(guess[y == c] == c).double().mean() for c in y.unique()]
    return {
        "accuracy": (guess == y).double().mean(),
        "balanced_accuracy": torch.stack(recalls).mean(),
        "loss": F.cross_entropy(out, y),
        "calibration_error": confidence_gaps(out.softmax(1).numpy(), y.numpy()),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_metrics_are_those_of_pytorch_and_scikit_learn(name, executor):
    case = CASES[name]
    fed, users = federation(case, **executor), case.users()
    theta = fed.train(fed.initial(), 1)
    found = fed.metrics(theta)
    assert {*found} == {*independent(name, *_outputs(case, users, theta, 0))}
    for i, n in enumerate(TESTS):
        if n == 0:
            assert all(one[i].isnan() for one in found.values())
            continue
        for metric, value in independent(name, *_outputs(case, users, theta, i)).items():
            ours = float(found[metric][i])
            assert ours == pytest.approx(float(value), abs=1e-9, nan_ok=True), (metric, i)
    assert close(fed.metric(theta), next(iter(found.values())), equal_nan=True)


def _outputs(case, users, theta, i):
    model = case.made()
    load(model, theta[i].cpu())
    n = TESTS[i]
    x, y = users.test.inputs[i, :n], users.test.targets[i, :n]
    with torch.no_grad():
        return model.eval()(x.double() if x.is_floating_point() else x), y


def test_the_loss_of_losses_and_of_examples_is_the_objectives(case):
    fed = federation(case)
    table, each = fed.losses(fed.initial()[:2], "train"), fed.example_losses(fed.initial(), "train")
    real = fed.users.train.real
    means = torch.where(real, each, 0).sum(1) / fed.sizes
    assert close(table[0], means)
    assert close(fed.loss(fed.initial(), "train"), means)


def test_a_model_of_nan_has_no_metric_at_all():
    for name in ("classification", "regression", "next-token"):
        fed = federation(CASES[name])
        theta = fed.initial().clone()
        theta[3] = torch.nan
        for metric, values in fed.metrics(theta).items():
            assert values[3].isnan(), metric
            assert values[0].isfinite(), metric


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
@pytest.mark.parametrize("name", algorithms.REGISTRY)
@pytest.mark.parametrize("case_name", ["regression", "next-token"])
def test_every_algorithm_takes_numbers_and_sequences(name, case_name):
    fed = federation(CASES[case_name])
    fed.users = replace(fed.users, groups=torch.tensor([0, 0, 1, 1, 1], device=fed.device))
    algorithm = algorithms.find(name)
    refused = {"fedbn": "the model has none"}  # no normalisation layers
    if case_name == "next-token":
        refused["fedmoe"] = "images or real numbers"
    if name in refused:
        with pytest.raises(UcflError, match=refused[name]):
            algorithm.check(fed)
        return
    algorithm.check(fed)
    state = algorithm.start(fed)
    for t in (1, 2):
        state = algorithm.round(fed, state, t)
    for metric, values in algorithm.metrics(fed, state).items():
        tested = torch.tensor(TESTS, device=fed.device) > (1 if metric == "r2" else 0)
        assert values[tested].isfinite().all(), metric
        assert values[~tested].isnan().all(), metric


def test_a_metric_of_no_examples_is_nan_whatever_its_function_says():
    """Known mistake: a person's own metric was 0 there, and counted in means."""
    case = CASES["classification"]
    hits = Metric(
        lambda outputs, targets: (outputs.argmax(-1) == targets).double(),
        lambda sums, count: sums[..., 0] / count.clamp(min=1),
    )
    whole = replace(objective(case.objective), metrics={"hits": hits})
    fed = Federation(case.users(), case.made(), objective=whole, device=DEVICE)
    found = fed.metrics(fed.initial())["hits"]
    assert found.isnan().tolist() == [n == 0 for n in TESTS]
