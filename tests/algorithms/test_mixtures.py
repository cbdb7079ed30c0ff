"""Methods that cluster users or mix models, against loops written from their publications.

The reference loops know nothing of Θ or the engine: modules, torch.optim or plain arithmetic. They
share the order of the examples, which is an input.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from algorithms import loops
from algorithms.loops import BATCH, LR, MOMENTUM, SIZES, after, local, order_of, shares
from conftest import close, make_federation, make_users
from federation.reference import batches, flat, load
from ucfl.algorithms import find
from ucfl.algorithms.cfl import CFL, bipartition
from ucfl.errors import UcflError
from ucfl.federation import Federation, Links
from ucfl.runs import federation
from ucfl.users import Users
from ucfl.users import find as find_scenario
from ucfl.wireless import Traffic

users, fed, model = map(pytest.fixture, (loops.users, loops.fed, loops.model))


def validation_loss(users, model, row, user):
    module = copy.deepcopy(model)
    load(module, row)
    x, y = users.validation.inputs[user].double(), users.validation.targets[user]
    with torch.no_grad():
        return nn.functional.cross_entropy(module(x), y)


def test_fedfomo_weighs_models_by_what_they_gain(users, fed, model):
    before = [flat(model)] * 3
    for t in (1, 2, 3):
        ends = [local(users, model, before[i], t, i) for i in range(3)]
        fresh = []
        for i in range(3):
            loss = validation_loss(users, model, before[i], i)
            gains = [
                max(0.0, float((loss - validation_loss(users, model, end, i)) /
                               (end - before[i]).norm()))
                for end in ends
            ]  # fmt: skip
            total = sum(gains)
            weights = [g / total for g in gains] if total else np.eye(3)[i]
            walk = sum(w * (end - before[i]) for w, end in zip(weights, ends, strict=True))
            fresh.append(before[i] + walk)
        before = fresh
    algorithm, state = after("fedfomo", fed, 3)
    assert close(algorithm.models(state), torch.stack(before), atol=1e-9)


def test_fedfomos_distances_are_precise_for_many_users():
    """float32 products lose what models that are near each other differ by."""
    fed = make_federation(make_users([12] * 30), double=False, lr=0.001)
    algorithm = find("fedfomo")
    before = fed.initial()
    after = fed.train(before, 1)
    state = algorithm.round(fed, {**algorithm.start(fed), "theta": before}, 1)
    apart = (before.double()[:, None] - after.double()[None]).norm(dim=2)
    gain = (fed.loss(before)[:, None] - fed.losses(after).T).double()
    weights = (gain / apart).clamp(min=0)
    total = weights.sum(1, keepdim=True)
    expected = torch.where(total > 0, weights / total, torch.eye(30, dtype=torch.float64))
    assert close(state["weights"], expected, atol=1e-6)


def test_fedfomo_receives_few_models_and_explores():
    users = make_users([10] * 8)
    fed = make_federation(users)
    algorithm = find("fedfomo:received=3:exploration=0.5")
    masks = [algorithm.offers(fed, algorithm.start(fed)["affinity"], t) for t in range(20)]
    for mask in masks:
        assert (mask.sum(1) == 4).all()  # three, and its own
        assert mask.diagonal().all()
    assert (torch.stack(masks).sum(0) > 0).all()  # in time everybody is tried
    known = torch.zeros(8, 8, dtype=torch.float64, device=fed.device)
    known[:, :4] = 5.0
    greedy = find("fedfomo:received=3:exploration=0").offers(fed, known, 1)
    assert (greedy[4:, :4].sum(1) == 3).all()


def test_fedfomo_without_validation_data_is_one_sentence():
    pairs = [(np.zeros((4, 2)), np.arange(4) % 2)] * 2
    users = Users.from_arrays(pairs, test=pairs, validation=[(x[:0], y[:0]) for x, y in pairs])
    with pytest.raises(UcflError, match="validation loss"):
        find("fedfomo").check(make_federation(users, "logistic"))


def test_cfl_names_users_and_not_positions_in_its_second_split():
    """The known mistake: a sub-matrix's row numbers taken for user ids when splitting again."""
    groups = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    directions = torch.eye(3, dtype=torch.float64)[groups]
    noise = 0.05 * torch.randn(
        9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    updates = torch.nn.functional.pad(directions + noise, (0, 1))

    class Fixed:
        """A federation whose users always send the same updates."""

        m, device = 9, torch.device("cpu")
        sizes, present = torch.full((9,), 10), None
        kept, uplink, downlink = Federation.kept, Federation.uplink, Federation.downlink
        links = Links()

        class rows:  # noqa: N801
            trainable = size = 4

        def initial(self):
            return torch.zeros(9, 4, dtype=torch.float64)

        def train(self, theta, t):
            return theta + updates

    fed, algorithm = Fixed(), CFL(mean_below=0.9)
    state = algorithm.start(fed)
    for t in (1, 2, 3):
        state = algorithm.round(fed, state, t)
    found = state["labels"]
    assert len(found.unique()) == 3
    for group in range(3):
        assert len(found[groups == group].unique()) == 1
    assert algorithm.traffic(fed, state) == Traffic(down=3, up=1)


def test_cfl_bipartition_separates_opposite_updates():
    updates = torch.tensor([[1.0, 0.1], [-1.0, 0.0], [0.9, 0.0], [-1.0, 0.2]]).double()
    assert bipartition(updates).tolist() == [False, True, False, True]


def test_fedem_is_em(users, fed, model):
    """One round against plain loops: responsibilities, shares, weighted SGD."""
    algorithm = find("fedem:components=2")
    start = algorithm.start(fed)
    given = torch.tensor([[0.3, 0.7]] * 3, dtype=torch.float64, device=fed.device)
    state = {**start, "shares": given}
    result = algorithm.round(fed, state, 1)
    trained = [[], []]
    for i, n in enumerate(SIZES):
        x, y = users.train.inputs[i][:n].double(), users.train.targets[i][:n]
        fits = []
        for row in start["components"]:
            module = copy.deepcopy(model)
            load(module, row)
            with torch.no_grad():
                fits.append(-nn.functional.cross_entropy(module(x), y, reduction="none"))
        joint = torch.stack(fits, 1).exp() * torch.tensor([0.3, 0.7], dtype=torch.float64)
        q = joint / joint.sum(1, keepdim=True)
        assert close(result["shares"][i], q.mean(0), atol=1e-10)
        order = order_of(users, 1, i)[0]
        for k in range(2):
            module = copy.deepcopy(model)
            load(module, start["components"][k])
            optimiser = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
            for chosen in batches(order, BATCH):
                optimiser.zero_grad()
                each = nn.functional.cross_entropy(module(x[chosen]), y[chosen], reduction="none")
                (each * q[chosen, k]).mean().backward()
                optimiser.step()
            trained[k].append(flat(module))
    for k in range(2):
        expected = sum(s * row for s, row in zip(shares(), trained[k], strict=True))
        assert close(result["components"][k], expected, atol=1e-11)


def test_fedem_tells_apart_two_opposite_tasks():
    users = make_users([60] * 4, classes=2, held=40)
    for split in ("train", "validation", "test"):
        users.split(split).targets[2:] = 1 - users.split(split).targets[2:]
    fed = make_federation(users)
    algorithm, state = after("fedem:components=2", fed, 15)
    assert algorithm.metrics(fed, state)["accuracy"].min() > 0.9
    favourite = state["shares"].argmax(1)
    assert favourite[0] == favourite[1] != favourite[2] == favourite[3]
    _, plain = after("fedavg", fed, 15)
    assert fed.metric(plain["theta"]).mean() < 0.7


def test_fedmoe_shares_experts_and_keeps_gates(users, fed):
    algorithm, state = after("fedmoe:experts=2", fed, 2)
    mixture = algorithm.federation(fed)
    gate = mixture.part("gate").mask
    theta = algorithm.models(state)
    assert gate.sum() == 36 * 2 + 2
    assert torch.equal(theta[0, ~gate], theta[2, ~gate])
    assert not close(theta[0, gate], theta[2, gate])
    one = mixture.train(algorithm.models(algorithm.start(fed)), 1)
    expected = shares() @ one[:, ~gate].cpu()
    first = algorithm.models(algorithm.round(fed, algorithm.start(fed), 1))
    assert close(first[0, ~gate], expected, atol=1e-12)


def test_fedmoes_mixture_is_never_compiled(users, fed):
    """On a GPU its experts did not learn (docs/algorithms/fedmoe.md)."""
    module = fed.module(fed.initial()[0])
    options = {"training": replace(fed.training, batch=1), "chunk": 2, "compiled": True}
    compiled = Federation(users, module, **options)
    assert compiled.executor.compiled
    assert not find("fedmoe").federation(compiled).executor.compiled


def test_fedmoe_gates_by_the_input():
    """Two input regions with opposite labelling of the same second coordinate."""
    rng = np.random.default_rng(0)

    def draw(n):
        region, sign = rng.integers(0, 2, n) * 2 - 1, rng.integers(0, 2, n) * 2 - 1
        x = np.stack([3.0 * region, sign + 0.0], 1) + 0.1 * rng.normal(size=(n, 2))
        return x, (region * sign > 0).astype(int)

    users = Users.from_arrays([draw(80)] * 3, [draw(40)] * 3, [draw(40)] * 3, classes=2)
    fed = make_federation(users, "logistic", lr=0.2)
    algorithm, state = after("fedmoe:experts=2", fed, 40)
    _, plain = after("fedavg", fed, 40)
    assert algorithm.metrics(fed, state)["accuracy"].mean() > 0.95
    assert fed.metric(plain["theta"]).mean() < 0.8  # no linear model can


# -- rotated MNIST ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rounds"), [("cfl", 6), ("fl-hc", 4)])
def test_clustering_methods_find_the_four_groups_of_rotated_mnist(name, rounds):
    fed = federation(find_scenario("rotated-mnist"), 0, device="cpu")
    _, state = after(name, fed, rounds)
    pairs = {(int(g), int(label)) for g, label in zip(fed.groups, state["labels"], strict=True)}
    assert len(pairs) == 4  # one label per group, one group per label
    assert len({g for g, _ in pairs}) == len({label for _, label in pairs}) == 4


def test_fedfomos_weights_concentrate_inside_groups():
    fed = federation(find_scenario("rotated-mnist"), 0, device="cpu")
    _, state = after("fedfomo", fed, 5)
    same = fed.groups[:, None] == fed.groups[None, :]
    inside = (state["affinity"] * same).sum() / state["affinity"].sum()
    assert inside > 0.6  # a quarter, if they did not care


def test_fedfomo_receives_from_those_who_are_there():
    """Known mistake: models of absent users were chosen, and then left out."""
    fed, algorithm = make_federation(make_users([10] * 20)), find("fedfomo:received=3")
    here = torch.zeros(20, dtype=torch.bool, device=fed.device)
    here[[2, 5, 11, 17]] = True
    affinity = algorithm.start(fed)["affinity"]
    for t in range(10):
        mask = algorithm.offers(fed.among(here), affinity, t)[here][:, here]
        assert mask.all()  # its own, and the three others


class Standardised(nn.Module):
    """Of padding it makes no number."""

    def forward(self, x):
        return (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)


def test_fedems_shares_do_not_depend_on_padding():
    """Known mistake: shorter users' shares were no numbers, and they were dropped."""
    model = nn.Sequential(Standardised(), nn.Flatten(), nn.Linear(36, 3))
    fed = Federation(make_users([20, 12, 9]), model, chunk=3)
    algorithm = find("fedem")
    state = algorithm.start(fed)
    for t in (1, 2):
        state = algorithm.round(fed, state, t)
    assert state["shares"].isfinite().all()
    assert close(state["shares"].sum(1), torch.ones_like(state["shares"][:, 0]))
