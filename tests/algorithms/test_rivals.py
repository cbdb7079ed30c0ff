"""Methods that pull on gradients, against loops written from their publications.

And known mistakes of others. The reference loops know nothing of Θ or the engine: modules,
torch.optim or plain arithmetic. They share the order of the examples, which is an input.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from algorithms import loops
from algorithms.loops import BATCH, SIZES, after, local, order_of, row_of, shares
from conftest import close, make_federation, make_users
from federation.reference import batches, flat, load
from ucfl.algorithms import find
from ucfl.algorithms.scaffold import effective_steps
from ucfl.federation import Federation, LocalTraining
from ucfl.users import Users
from ucfl.wireless import Traffic

users, fed, model = map(pytest.fixture, (loops.users, loops.fed, loops.model))


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
    assert close(algorithm.models(state), expected, atol=1e-11)
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
    assert close(algorithm.models(state), torch.stack(personal), atol=1e-11)
    assert close(state["theta"][0], globally, atol=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_option_two_with_unequal_users(users, model, momentum):
    """Known mistakes: one step count for all users; variates that do not start at zero."""
    fed = make_federation(users, momentum=momentum)
    algorithm = find("scaffold:lr=0.02:epochs=2")
    start = algorithm.start(fed)
    assert not start["variates"].any()
    steps = [2 * max(1, n // BATCH) for n in SIZES]
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
    assert close(state["theta"][1], x, atol=1e-9)
    assert close(state["variates"], torch.stack(own), atol=1e-8)


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
    name = f"pfedme:form=publication:strength={strength}:inner_steps={inner}:lr={lr}"
    name += f":personal_lr={personal_lr}"
    w = [flat(model)] * 3
    personal = [None] * 3
    for t in (1, 2):
        for i in range(len(SIZES)):
            order = order_of(users, t, i)[0]
            for chosen in batches(order, batch):
                module = copy.deepcopy(model)
                load(module, w[i])
                optimiser = torch.optim.SGD(module.parameters(), lr=personal_lr)
                for _ in range(inner):
                    optimiser.zero_grad()
                    x, y = users.train.inputs[i][chosen].double(), users.train.targets[i][chosen]
                    loss = nn.functional.cross_entropy(module(x), y)
                    (loss + strength / 2 * (row_of(module) - w[i]).square().sum()).backward()
                    optimiser.step()
                personal[i] = flat(module)
                w[i] = w[i] - lr * strength * (w[i] - personal[i])
        w = [sum(share * row for share, row in zip(shares(), w, strict=True))] * 3
    for path in ({}, {"chunk": 2}, {"plain": True}):
        algorithm, state = after(f"{name}:batch={batch}", make_federation(users, **path), 2)
        assert close(algorithm.models(state), torch.stack(personal), atol=1e-11)
        assert close(state["theta"][0], w[0], atol=1e-11)


def fresh_batches(users, t, user, batch, count):
    """So many batches of a round, pass after pass; a short last one of a pass is dropped."""
    passes = order_of(users, t, user, epochs=count)
    return [chosen for order in passes for chosen in batches(order, batch)][:count]


def test_pfedme_as_its_authors_run_it(users, model):
    """Two persistent optimisers of PyTorch's a user: of θ and of w, which the server then sets.

    Known mistakes: θ restarts from w, velocities start anew in every round, or one step's batch
    serves all inner steps.
    """
    strength, inner, outer, lr, personal_lr, batch = 3.0, 3, 4, 0.02, 0.03, 6
    near, far = ([copy.deepcopy(model) for _ in SIZES] for _ in range(2))
    inners = [torch.optim.SGD(m.parameters(), lr=personal_lr, momentum=0.9) for m in near]
    outers = [torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9) for m in far]
    for t in (1, 2, 3):
        for i in range(len(SIZES)):
            load(near[i], flat(far[i]))
            chosen = fresh_batches(users, t, i, batch, inner * outer)
            for step, examples in enumerate(chosen):
                inners[i].zero_grad()
                x, y = users.train.inputs[i][examples].double(), users.train.targets[i][examples]
                loss = nn.functional.cross_entropy(near[i](x), y)
                apart = (row_of(near[i]) - flat(far[i])).square().sum()
                (loss + strength / 2 * apart).backward()
                inners[i].step()
                if step % inner == inner - 1:
                    pairs = zip(far[i].parameters(), near[i].parameters(), strict=True)
                    for w, theta in pairs:
                        w.grad = strength * (w - theta).detach()
                    outers[i].step()
        average = sum(share * flat(m) for share, m in zip(shares(), far, strict=True))
        for module in far:
            load(module, average)
    name = f"pfedme:strength={strength}:outer_steps={outer}:lr={lr}:personal_lr={personal_lr}"
    for path in ({}, {"chunk": 2}, {"plain": True}):
        fed = make_federation(users, **path)
        algorithm, state = after(f"{name}:batch={batch}", fed, 3)
        assert close(algorithm.models(state), torch.stack([flat(m) for m in near]), atol=1e-9)
        assert close(state["theta"][0], average, atol=1e-9)
        assert algorithm.traffic(fed, state).work == pytest.approx(
            sum(inner * outer * min(batch, n) for n in SIZES) / fed.examples(fed.training)
        )


def test_pfedmes_forms_are_those_of_the_issue():
    """60 batches a round as its authors run it; S = 15 on each batch of a pass as published."""
    authors, published = find("pfedme"), find("pfedme:form=publication")
    assert (authors.settings.inner_steps, authors.settings.outer_steps) == (3, 20)
    assert (authors.settings.momentum, authors.settings.outer_momentum) == (0.9, 0.9)
    assert (authors.strength, authors.lr, authors.personal_lr, authors.batch) == (
        15,
        0.01,
        0.01,
        20,
    )
    assert (published.settings.inner_steps, published.settings.outer_steps) == (15, None)
    assert published.settings.momentum == published.settings.outer_momentum == 0
    fed = make_federation(make_users([100, 200]))
    assert fed.steps_of(authors.training(fed)).tolist() == [60, 60]
    assert fed.steps_of(published.training(fed)).tolist() == [5, 10]


def test_a_methods_own_epochs_count_where_the_federation_counts_steps(users, model):
    """Known mistake: ``steps`` of the federation's training went before the method's epochs."""
    training = LocalTraining(lr=0.05, momentum=0.0, batch=BATCH, steps=1)
    fed = Federation(users, model, training=training)
    twice = [2 * max(1, n // BATCH) for n in SIZES]
    assert fed.steps_of(find("scaffold:epochs=2").training(fed)).tolist() == twice
    for name in ("fedavg-finetune:epochs=2", "fedbabu:finetune_epochs=2"):
        assert fed.steps_of(find(name).tuning(fed)).tolist() == twice


def test_fedavg_finetune_is_fedavg_and_then_some_local_epochs(users, fed, model):
    globally = flat(model)
    for t in (1, 2):
        globally = sum(
            share * local(users, model, globally, t, i) for i, share in enumerate(shares())
        )
    expected = [local(users, model, globally, 3, i, epochs=2) for i in range(3)]
    algorithm, state = after("fedavg-finetune:epochs=2", fed, 2)
    assert close(algorithm.models(state), torch.stack(expected), atol=1e-11)
    assert algorithm.traffic(fed, state) == Traffic(down=1, up=1, work=3)


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
        assert close(mixed, shares() @ separate, atol=1e-10)
        assert not close(mixed, separate[0])
