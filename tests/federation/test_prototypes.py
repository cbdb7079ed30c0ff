"""Class prototypes against a loop over users with a hook on the last layer, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from conftest import make_federation, make_users
from federation.test_objectives import CLASSES, LENGTH, Sequences
from ucfl.federation import Federation, LocalTraining, objective
from ucfl.federation.prototypes import BINS
from ucfl.users import IGNORED, Users

SIZES = [20, 1, 7, 33]
EXECUTORS = [{"chunk": 2}, {"chunk": 4}, {"plain": True}]
executors = pytest.mark.parametrize("executor", EXECUTORS, ids=str)


def by_hand(fed, kinds, count, positions=False):
    """Means, variances and counts by a loop; ``kinds(user)`` are its examples' classes."""
    means, variances, counts = [], [], []
    head = fed.rows.head
    for user in range(fed.m):
        module, seen = fed.module(fed.initial()[user]), []
        module.get_submodule(head).register_forward_pre_hook(
            lambda layer, given, seen=seen: seen.append(given[0])
        )
        n = int(fed.sizes[user])
        with torch.no_grad():
            module(fed.users.train.inputs[user, :n].double() if not positions
                   else fed.users.train.inputs[user, :n])  # fmt: skip
        features = seen[0]
        if isinstance(module.get_submodule(head), nn.Conv2d):
            features = features.mean((2, 3))
        features, labels = features.reshape(-1, features.shape[-1]), kinds(user)[:n].reshape(-1)
        own = [features[labels == c] for c in range(count)]
        means.append(torch.stack([f.mean(0) if len(f) else torch.zeros(f.shape[1]) for f in own]))
        variances.append(
            torch.stack([f.var(0).sum() if len(f) > 1 else f.new_zeros(()) for f in own])
        )
        counts.append(torch.tensor([len(f) for f in own]))
    return [torch.stack(part).double() for part in (means, variances, counts)]


def check(fed, *parts):
    found = fed.prototypes(fed.initial())
    for one, other in zip((found.means, found.variances, found.counts), parts, strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-9)
    assert found.numbers == parts[0][0].numel() + 2 * parts[0].shape[1]


@executors
@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_classes(model, executor):
    fed = make_federation(make_users(SIZES), model, **executor)
    check(fed, *by_hand(fed, lambda user: fed.users.train.targets[user], 3))


@executors
def test_a_convolution_as_the_last_layer_gives_means_over_the_image(executor):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    fed = Federation(make_users(SIZES), net.double(), training=LocalTraining(batch=8), **executor)
    check(fed, *by_hand(fed, lambda user: fed.users.train.targets[user], 3))


@executors
def test_every_position_of_a_sequence_counts_but_those_that_do_not(executor):
    rng = np.random.default_rng(0)

    def pair(n):
        y = rng.integers(0, CLASSES, (n, LENGTH))
        y[:, -1] = IGNORED
        return rng.integers(0, CLASSES, (n, LENGTH)), y

    users = Users.from_arrays(
        [pair(n) for n in SIZES], [pair(2)] * 4, [pair(2)] * 4, classes=CLASSES
    )
    fed = Federation(
        users, Sequences().double(), objective=objective("next-token"),
        training=LocalTraining(batch=8), **executor,
    )  # fmt: skip
    check(fed, *by_hand(fed, lambda user: users.train.targets[user], CLASSES, positions=True))
    assert fed.prototypes(fed.initial()).counts.sum() == sum(SIZES) * (LENGTH - 1)


@executors
def test_numbers_are_put_into_bins_that_all_users_share(executor):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (40, 30, 50)]
    users = Users.from_arrays(pairs)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0)).double()
    fed = Federation(
        users, net, objective=objective("regression"), training=LocalTraining(batch=8), **executor
    )
    found = fed.prototypes(fed.initial())
    assert found.counts.shape == (3, BINS)
    assert found.counts.sum(1).tolist() == fed.sizes.tolist()
    assert (found.counts.sum(0) > 0).all()
    data, sizes = users.train, users.train.sizes
    edges = sum(
        n * np.quantile(data.targets[i, :n].numpy(), np.linspace(0, 1, BINS + 1)[1:-1])
        for i, n in enumerate(sizes.tolist())
    ) / float(sizes.sum())
    check(fed, *by_hand(fed, lambda i: torch.from_numpy(np.digitize(data.targets[i], edges)), BINS))


class Bare(nn.Module):
    """A last layer whose parameters are used without calling it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(36, 5), nn.Linear(5, 3)

    def forward(self, x):
        return nn.functional.linear(
            self.first(x.flatten(1)).relu(), self.last.weight, self.last.bias
        )


@executors
def test_a_model_whose_last_layer_is_not_called_is_known_by_its_outputs(executor):
    fed = Federation(
        make_users(SIZES), Bare().double(), training=LocalTraining(batch=8), **executor
    )
    found, outputs = fed.prototypes(fed.initial()), fed.outputs(fed.initial(), "train")
    labels = fed.users.train.targets[3, :33]
    wanted = torch.stack([outputs[3, :33][labels == c].mean(0) for c in range(3)])
    assert torch.allclose(found.means[3].cpu(), wanted.cpu(), atol=1e-9)


def test_padding_is_not_looked_at():
    users = make_users(SIZES)
    clean = make_federation(users).prototypes(make_federation(users).initial())
    inputs = users.train.inputs.clone()
    inputs[~users.train.real] = torch.nan
    spoilt = make_federation(users.with_train(inputs, users.train.targets))
    found = spoilt.prototypes(spoilt.initial())
    assert torch.equal(found.means, clean.means)
    assert torch.equal(found.variances, clean.variances)


def test_features_are_shortened_to_the_largest_length():
    fed = make_federation(make_users(SIZES))
    free = fed.prototypes(fed.initial())
    longest = float(free.means.norm(dim=2).max())
    short = fed.prototypes(fed.initial(), longest / 4)
    assert float(short.means.norm(dim=2).max()) <= longest / 4 + 1e-9
    assert torch.allclose(fed.prototypes(fed.initial(), 100 * longest).means, free.means)


class TimeMajor(nn.Module):
    """Its layers have time first, its inputs and outputs examples first."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, 7), nn.Linear(7, CLASSES)

    def forward(self, tokens):
        return self.head(self.embedding(tokens.T)).transpose(0, 1)


@executors
def test_a_last_layer_with_time_first_is_known_by_the_outputs_also_where_shapes_agree(executor):
    rng = np.random.default_rng(1)

    def pair(n):
        return tuple(rng.integers(0, CLASSES, (n, LENGTH)) for _ in range(2))

    users = Users.from_arrays(
        [pair(LENGTH) for _ in range(4)], [pair(2)] * 4, [pair(2)] * 4, classes=CLASSES
    )
    fed = Federation(
        users, TimeMajor().double(), objective=objective("next-token"),
        training=LocalTraining(batch=8), **executor,
    )  # fmt: skip
    found = fed.prototypes(fed.initial())
    outputs = fed.outputs(fed.initial(), "train")[0].reshape(-1, CLASSES)
    labels = users.train.targets[0].reshape(-1)
    for c in labels.unique():
        mean = outputs[labels == c].mean(0)
        assert torch.allclose(found.means[0, c].cpu(), mean.cpu(), atol=1e-9)


def test_newcomers_numbers_go_into_the_users_bins():
    rng = np.random.default_rng(2)
    net = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()
    users = Users.from_arrays([(rng.normal(size=(60, 4)), rng.random(60)) for _ in range(3)])
    late = Users.from_arrays([(rng.normal(size=(60, 4)), 0.5 + rng.random(60) / 2)])
    fed = Federation(users, net, objective=objective("regression"))
    new = fed.of(late)
    assert (new.prototypes(new.initial()).counts > 0).all()
    assert not (new.prototypes(new.initial(), like=fed).counts[0, :4] > 0).any()
