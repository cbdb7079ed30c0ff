"""Every compared method against a loop written from its publication, and known mistakes of others.

The reference loops know nothing of Θ or the engine: modules, torch.optim or plain arithmetic. They
share the order of the examples, which is an input.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from conftest import make_federation, make_users
from federation.reference import flat, load, train_one_user
from ucfl.algorithms import find
from ucfl.algorithms.cfl import CFL, bipartition
from ucfl.algorithms.scaffold import effective_steps
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining, create
from ucfl.federation.draws import orders
from ucfl.runs import federation
from ucfl.users import Users
from ucfl.users import find as find_scenario
from ucfl.wireless import Traffic

SIZES = [20, 7, 13]
BATCH, LR, MOMENTUM = 8, 0.05, 0.9


@pytest.fixture
def users():
    return make_users(SIZES, groups=[0, 0, 1])


@pytest.fixture
def fed(users):
    return make_federation(users)


@pytest.fixture
def model(users):
    return create("mlp", users.input_shape, users.classes, seed=0).double()


def order_of(users, t, user, epochs=1):
    n = int(users.train.sizes[user])
    return orders(0, t, users.ids, users.train.sizes, epochs, max(SIZES))[user, :, :n]


def local(users, model, row, t, user, pull=None, lr=LR, epochs=1, batch=BATCH, momentum=MOMENTUM):
    x, y = users.train.inputs[user].double(), users.train.labels[user]
    return train_one_user(
        model, row, x, y, order_of(users, t, user, epochs), batch, lr, momentum, pull
    )


def row_of(module):
    return torch.cat([p.reshape(-1) for p in module.parameters()])


def shares():
    return torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)


def after(name, fed, rounds):
    algorithm = find(name)
    state = algorithm.start(fed)
    for t in range(1, rounds + 1):
        state = algorithm.round(fed, state, t)
    return algorithm, state


@pytest.mark.parametrize("tested", ["aggregated", "local"])
def test_fedprox_penalises_half_the_squared_distance(users, fed, model, tested):
    """The known mistake: the norm instead of its square, or no half: a pull of another size."""
    globally = flat(model)
    for t in (1, 2):
        anchor = globally

        def penalty(module, anchor=anchor):
            return 0.7 / 2 * (row_of(module) - anchor).square().sum()

        locals_ = torch.stack([local(users, model, globally, t, i, penalty) for i in range(3)])
        globally = shares() @ locals_
    algorithm, state = after(f"fedprox:mu=0.7:tested={tested}", fed, 2)
    expected = globally.expand(3, -1) if tested == "aggregated" else locals_
    assert torch.allclose(algorithm.models(state), expected, atol=1e-11)
    assert algorithm.tested_model == tested


def test_ditto_keeps_a_personal_model_near_the_global_one(users, fed, model):
    globally, personal = flat(model), [flat(model)] * 3
    for t in (1, 2, 3):
        anchor = globally

        def penalty(module, anchor=anchor):
            return 0.4 / 2 * (row_of(module) - anchor).square().sum()

        personal = [local(users, model, personal[i], t, i, penalty) for i in range(3)]
        globally = sum(
            share * local(users, model, globally, t, i) for i, share in enumerate(shares())
        )
    algorithm, state = after("ditto:strength=0.4", fed, 3)
    assert torch.allclose(algorithm.models(state), torch.stack(personal), atol=1e-11)
    assert torch.allclose(state["theta"][0], globally, atol=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_option_two_with_unequal_users(users, model, momentum):
    """Known mistakes: one step count for all users; variates that do not start at zero."""
    fed = make_federation(users, momentum=momentum)
    algorithm = find("scaffold:lr=0.02:epochs=2")
    start = algorithm.start(fed)
    assert not start["variates"].any()
    steps = [2 * -(-n // BATCH) for n in SIZES]
    assert fed.steps_of(algorithm.training(fed)).tolist() == steps
    x, c, own = flat(model), torch.zeros_like(flat(model)), [torch.zeros_like(flat(model))] * 3
    for t in (1, 2, 3):
        ends = []
        for i in range(3):
            correction = c - own[i]
            ends.append(
                local(
                    users, model, x, t, i, lambda m, d=correction: (d * row_of(m)).sum(),
                    lr=0.02, epochs=2, momentum=momentum,
                )
            )  # fmt: skip
        for i in range(3):
            # A constant gradient g would move the model by −lr · g · weight.
            position, velocity = 0.0, 0.0
            for _ in range(steps[i]):
                velocity = momentum * velocity + 1.0
                position -= 0.02 * velocity
            own[i] = own[i] - c + (x - ends[i]) / -position
        x = sum(share * end for share, end in zip(shares(), ends, strict=True))
        c = sum(share * o for share, o in zip(shares(), own, strict=True))
    _, state = after("scaffold:lr=0.02:epochs=2", fed, 3)
    assert torch.allclose(state["theta"][1], x, atol=1e-9)
    assert torch.allclose(state["variates"], torch.stack(own), atol=1e-8)


def test_scaffolds_step_count_is_the_published_one_without_momentum():
    steps = torch.tensor([1, 3, 40])
    assert effective_steps(steps, 0.0).tolist() == [1, 3, 40]
    by_hand = [1.0, 1 + 1.9 + 2.71]
    assert effective_steps(torch.tensor([1, 3]), 0.9).tolist() == pytest.approx(by_hand)


def test_scaffold_removes_the_drift_of_quadratics():
    """Users pull to different optima at different strengths; only the mean loss counts.

    FedAvg with many local steps is biased; SCAFFOLD's fixed point is the true minimum, since all
    users' corrected gradients vanish together there.
    """
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 4)) * scale, rng.integers(0, 2, n)) for n, scale in
             ((16, 0.3), (16, 3.0))]  # fmt: skip
    users = Users.from_arrays(pairs, pairs, pairs, classes=2)
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    fed = Federation(users, model, training=LocalTraining(lr=0.1, momentum=0.0, batch=16))

    def gradient_at(row):
        module = copy.deepcopy(model)
        load(module, row)
        loss = sum(
            nn.functional.cross_entropy(module(torch.tensor(x).float().double()), torch.tensor(y))
            for x, y in pairs
        )
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, module.parameters())])

    many = LocalTraining(lr=0.1, momentum=0.0, batch=16, epochs=10)
    fedavg = Federation(users, model, training=many)
    _, plain = after("fedavg", fedavg, 150)
    _, corrected = after("scaffold:lr=0.1:epochs=10", fed, 150)
    bias = gradient_at(plain["theta"][0]).norm()
    rest = gradient_at(corrected["theta"][0]).norm()
    assert rest < 0.05 * bias


def test_pfedme_walks_towards_proximal_points(users, fed, model):
    strength, inner, lr, personal_lr, batch = 3.0, 4, 0.05, 0.02, 6
    name = f"pfedme:strength={strength}:inner_steps={inner}:lr={lr}:personal_lr={personal_lr}"
    w = [flat(model)] * 3
    personal = [None] * 3
    for t in (1, 2):
        for i, n in enumerate(SIZES):
            order = order_of(users, t, i)[0]
            for start in range(0, n, batch):
                chosen = order[start : start + batch]
                module = copy.deepcopy(model)
                load(module, w[i])
                optimiser = torch.optim.SGD(module.parameters(), lr=personal_lr)
                for _ in range(inner):
                    optimiser.zero_grad()
                    x, y = users.train.inputs[i][chosen].double(), users.train.labels[i][chosen]
                    loss = nn.functional.cross_entropy(module(x), y)
                    (loss + strength / 2 * (row_of(module) - w[i]).square().sum()).backward()
                    optimiser.step()
                personal[i] = flat(module)
                w[i] = w[i] - lr * strength * (w[i] - personal[i])
        w = [sum(share * row for share, row in zip(shares(), w, strict=True))] * 3
    for path in ({}, {"chunk": 2}, {"plain": True}):
        algorithm, state = after(f"{name}:batch={batch}", make_federation(users, **path), 2)
        assert torch.allclose(algorithm.models(state), torch.stack(personal), atol=1e-11)
        assert torch.allclose(state["theta"][0], w[0], atol=1e-11)


def test_fedavg_finetune_is_fedavg_and_then_some_local_epochs(users, fed, model):
    globally = flat(model)
    for t in (1, 2):
        globally = sum(
            share * local(users, model, globally, t, i) for i, share in enumerate(shares())
        )
    expected = [local(users, model, globally, 3, i, epochs=2) for i in range(3)]
    algorithm, state = after("fedavg-finetune:epochs=2", fed, 2)
    assert torch.allclose(algorithm.models(state), torch.stack(expected), atol=1e-11)
    assert algorithm.traffic(fed, state) == Traffic(down=1, up=1, work=3)


def validation_loss(users, model, row, user):
    module = copy.deepcopy(model)
    load(module, row)
    x, y = users.validation.inputs[user].double(), users.validation.labels[user]
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
    assert torch.allclose(algorithm.models(state), torch.stack(before), atol=1e-9)


def test_fedfomo_receives_few_models_and_explores():
    users = make_users([10] * 8)
    fed = make_federation(users)
    algorithm = find("fedfomo:received=3:exploration=0.5")
    masks = [algorithm.offers(fed, algorithm.start(fed)["affinity"], t) for t in range(20)]
    for mask in masks:
        assert (mask.sum(1) == 4).all()  # three, and its own
        assert mask.diagonal().all()
    assert (torch.stack(masks).sum(0) > 0).all()  # in time everybody is tried
    known = torch.zeros(8, 8, dtype=torch.float64)
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
        sizes = torch.full((9,), 10)

        class rows:  # noqa: N801
            trainable = 4

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
    state = {**start, "shares": torch.tensor([[0.3, 0.7]] * 3, dtype=torch.float64)}
    result = algorithm.round(fed, state, 1)
    trained = [[], []]
    for i, n in enumerate(SIZES):
        x, y = users.train.inputs[i][:n].double(), users.train.labels[i][:n]
        fits = []
        for row in start["components"]:
            module = copy.deepcopy(model)
            load(module, row)
            with torch.no_grad():
                fits.append(-nn.functional.cross_entropy(module(x), y, reduction="none"))
        joint = torch.stack(fits, 1).exp() * torch.tensor([0.3, 0.7], dtype=torch.float64)
        q = joint / joint.sum(1, keepdim=True)
        assert torch.allclose(result["shares"][i], q.mean(0), atol=1e-10)
        order = order_of(users, 1, i)[0]
        for k in range(2):
            module = copy.deepcopy(model)
            load(module, start["components"][k])
            optimiser = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
            for begin in range(0, n, BATCH):
                chosen = order[begin : begin + BATCH]
                optimiser.zero_grad()
                each = nn.functional.cross_entropy(module(x[chosen]), y[chosen], reduction="none")
                (each * q[chosen, k]).mean().backward()
                optimiser.step()
            trained[k].append(flat(module))
    for k in range(2):
        expected = sum(s * row for s, row in zip(shares(), trained[k], strict=True))
        assert torch.allclose(result["components"][k], expected, atol=1e-11)


def test_fedem_tells_apart_two_opposite_tasks():
    users = make_users([60] * 4, classes=2, held=40)
    for split in ("train", "validation", "test"):
        users.split(split).labels[2:] = 1 - users.split(split).labels[2:]
    fed = make_federation(users)
    algorithm, state = after("fedem:components=2", fed, 15)
    assert algorithm.accuracy(fed, state).min() > 0.9
    favourite = state["shares"].argmax(1)
    assert favourite[0] == favourite[1] != favourite[2] == favourite[3]
    _, plain = after("fedavg", fed, 15)
    assert fed.accuracy(plain["theta"]).mean() < 0.7


def test_fedmoe_shares_experts_and_keeps_gates(users, fed):
    algorithm, state = after("fedmoe:experts=2", fed, 2)
    mixture = algorithm.federation(fed)
    gate = mixture.rows.where("gate.")
    theta = algorithm.models(state)
    assert gate.sum() == 36 * 2 + 2
    assert torch.equal(theta[0, ~gate], theta[2, ~gate])
    assert not torch.allclose(theta[0, gate], theta[2, gate])
    one = mixture.train(algorithm.models(algorithm.start(fed)), 1)
    expected = shares() @ one[:, ~gate]
    first = algorithm.models(algorithm.round(fed, algorithm.start(fed), 1))
    assert torch.allclose(first[0, ~gate], expected, atol=1e-12)


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
    assert algorithm.accuracy(fed, state).mean() > 0.95
    assert fed.accuracy(plain["theta"]).mean() < 0.8  # no linear model can


def test_batchnorm_buffers_are_everyones_and_not_user_zeros():
    """The known mistake: averaging parameters, and taking buffers from one user."""
    users = make_users([20, 7, 13], shape=(5,), groups=[0, 0, 1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    fed = Federation(users, model, training=LocalTraining(lr=0.05, batch=8))
    buffers = slice(fed.rows.trainable, None)
    separate = fed.train(fed.initial(), 1)[:, buffers]
    for name in ("fedavg", "fedprox:mu=0", "cfl", "fl-hc"):
        _, state = after(name, fed, 1)
        mixed = state["theta"][0, buffers]
        assert torch.allclose(mixed, shares() @ separate, atol=1e-10)
        assert not torch.allclose(mixed, separate[0])


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
