"""Further personalised methods, against loops written from their publications.

The reference loops know nothing of Θ or the engine: modules, torch.optim or plain arithmetic. They
share the order of the examples, which is an input.
"""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.func import functional_call

from algorithms import loops
from algorithms.loops import BATCH, SIZES, after, local, order_of, row_of, shares
from conftest import close, make_federation, make_users
from federation.reference import batches, flat, load
from ucfl.algorithms import find
from ucfl.errors import UcflError

users, fed, model = map(pytest.fixture, (loops.users, loops.fed, loops.model))
PATHS = ({}, {"chunk": 2}, {"plain": True})


def gradient(model, row, x, y):
    module = copy.deepcopy(model)
    load(module, row)
    loss = nn.functional.cross_entropy(module(x), y)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, module.parameters())])


def data(users, user, chosen=slice(None)):
    n = SIZES[user]
    return users.train.inputs[user][:n][chosen].double(), users.train.targets[user][:n][chosen]


def loss_of(users, model, row, user):
    module = copy.deepcopy(model)
    load(module, row)
    x, y = data(users, user)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(module(x), y))


# -- Per-FedAvg ------------------------------------------------------------------------------------


def test_per_fedavg_is_first_order_maml(users, model):
    """Known mistakes: one batch for the inner and the outer step; steps from the adapted model."""
    alpha, beta, size, tau, steps = 0.05, 0.1, 6, 3, 2
    name = f"per-fedavg:alpha={alpha}:beta={beta}:batch={size}:tau={tau}:steps={steps}"

    def drawn(t, user, count):
        passes = order_of(users, t, user, epochs=6)
        return [chosen for epoch in passes for chosen in batches(epoch, size)][:count]

    w = flat(model)
    for t in (1, 2):
        ends = []
        for i in range(3):
            own = w
            pairs = iter(drawn(t, i, 2 * tau))
            for first, second in zip(pairs, pairs, strict=True):
                adapted = own - alpha * gradient(model, own, *data(users, i, first))
                own = own - beta * gradient(model, adapted, *data(users, i, second))
            ends.append(own)
        w = sum(share * end for share, end in zip(shares(), ends, strict=True))
        personal = []
        for i in range(3):
            own = w
            for chosen in drawn(t + 1, i, steps):
                own = own - alpha * gradient(model, own, *data(users, i, chosen))
            personal.append(own)
    for path in PATHS:
        algorithm, state = after(name, make_federation(users, **path), 2)
        assert close(algorithm.models(state), torch.stack(personal), atol=1e-11)
        assert close(state["theta"][0], w, atol=1e-11)


def test_per_fedavgs_model_gains_more_by_a_step_than_it_is_good():
    """Two opposite tasks: no single model fits both, and one that adapts in a step exists."""
    users = make_users([60] * 4, classes=2, held=40)
    for split in ("train", "validation", "test"):
        users.split(split).targets[2:] = 1 - users.split(split).targets[2:]
    fed = make_federation(users)
    algorithm, state = after("per-fedavg:alpha=0.1:beta=0.1", fed, 20)
    assert fed.metric(state["theta"]).mean() < 0.7
    assert algorithm.metrics(fed, state)["accuracy"].mean() > 0.9


# -- FedAMP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "sigma"), [(0.3, 2.0), (1.0, 1.0)])
def test_fedamp_pulls_to_mixtures_of_near_models(users, fed, model, alpha, sigma):
    """Known mistakes: the norm instead of its square, in the pull; a pull without a gradient."""
    models = [flat(model)] * 3
    for t in (1, 2, 3):
        fresh = []
        for i in range(3):
            xi = [
                0.0 if j == i else alpha * math.exp(-float((models[i] - w).square().sum()) / sigma)
                / sigma for j, w in enumerate(models)
            ]  # fmt: skip
            xi = [x / max(1.0, sum(xi)) for x in xi]
            xi[i] = 1 - sum(xi)
            cloud = sum(x * w for x, w in zip(xi, models, strict=True))

            def penalty(module, cloud=cloud):
                return 0.7 / (2 * alpha) * (row_of(module) - cloud).square().sum()

            fresh.append(local(users, model, models[i], t, i, penalty))
        models = fresh
    name = f"fedamp:strength=0.7:alpha={alpha}:sigma={sigma}"
    algorithm, state = after(name, fed, 3)
    assert close(algorithm.models(state), torch.stack(models), atol=1e-10)


def test_fedamps_weights_are_larger_for_nearer_models_and_add_up_to_one(fed):
    theta = fed.initial().clone()
    theta[1] += 0.01
    theta[2] -= 0.02
    for name in ("fedamp", "fedamp:alpha=0.1", "fedamp:alpha=1000"):
        weights = find(name).attention(fed, theta)
        assert (weights >= 0).all()
        assert close(weights.sum(1), torch.ones(3).double())
        assert weights[0, 1] > weights[0, 2]
    present = torch.tensor([True, False, True], device=fed.device)
    there = find("fedamp:alpha=0.1").attention(fed.among(present), theta)
    assert there[1].tolist() == [0, 1, 0]
    assert there[:, 1].tolist() == [0, 1, 0]


# -- IFCA ------------------------------------------------------------------------------------------


def test_ifca_chooses_by_loss_and_averages_inside_clusters(users, fed, model):
    start = find("ifca:clusters=3").start(fed)
    clusters = list(start["clusters"].cpu())
    assert close(clusters[0], flat(model))
    assert not close(clusters[1], clusters[2])
    for t in (1, 2, 3):
        chosen = [
            int(np.argmin([loss_of(users, model, row, i) for row in clusters])) for i in range(3)
        ]
        ends = [local(users, model, clusters[s], t, i) for i, s in enumerate(chosen)]
        for s in range(3):
            members = [i for i in range(3) if chosen[i] == s]
            if members:
                total = sum(SIZES[i] for i in members)
                clusters[s] = sum(SIZES[i] / total * ends[i] for i in members)
    algorithm, state = after("ifca:clusters=3", fed, 3)
    assert state["labels"].tolist() == chosen
    assert close(state["clusters"], torch.stack(clusters), atol=1e-11)
    assert close(algorithm.models(state), torch.stack(clusters)[chosen], atol=1e-11)


def opposite():
    """Two groups with opposite labels, and a newcomer of each."""
    users = make_users([60] * 6, classes=2, held=40)
    for split in ("train", "validation", "test"):
        users.split(split).targets[3:] = 1 - users.split(split).targets[3:]
    return users.select([0, 1, 3, 4]), users.select([2, 5])


def test_ifca_tells_apart_two_opposite_tasks_and_serves_newcomers():
    users, late = opposite()
    fed = make_federation(users)
    algorithm, state = after("ifca:clusters=2", fed, 10)
    one, same, other, its = state["labels"].tolist()
    assert one == same != other == its
    assert algorithm.metrics(fed, state)["accuracy"].min() > 0.9
    theirs = algorithm.newcomers(fed, state, fed.of(late))
    assert close(theirs, state["clusters"][[one, other]])


def test_ifcas_users_choose_by_their_own_data_and_a_model_that_nobody_chose_stays(users):
    ours, theirs = make_users(SIZES, seed=0), make_users(SIZES, seed=1)
    states = []
    for others in (ours, theirs):
        mixed = copy.deepcopy(others)
        mixed.train.inputs[0], mixed.train.targets[0] = ours.train.inputs[0], ours.train.targets[0]
        fed = make_federation(mixed)
        start = find("ifca").start(fed)
        states.append(find("ifca").round(fed, start, 1))
        for s in set(range(4)) - set(states[-1]["labels"].tolist()):
            assert torch.equal(states[-1]["clusters"][s], start["clusters"][s])
    assert states[0]["labels"][0] == states[1]["labels"][0]


# -- pFedGraph -------------------------------------------------------------------------------------


def solved(similarity, strength):
    """The weights of one user, by a general solver."""
    p = np.array(SIZES) / sum(SIZES)
    return minimize(
        lambda w: strength * ((w - p) ** 2).sum() - w @ similarity,
        p,
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-16},
    ).x


@pytest.mark.parametrize("tested", ["local", "aggregated"])
def test_pfedgraph_infers_the_graph_and_trains_along_its_mixtures(users, fed, model, tested):
    alpha, strength, first = 0.8, 0.5, flat(model)
    mixed = [first] * 3
    for t in (1, 2, 3):
        ends = []
        for i in range(3):

            def penalty(module, cloud=mixed[i]):
                return -strength * nn.functional.cosine_similarity(row_of(module), cloud, dim=0)

            ends.append(local(users, model, mixed[i], t, i, penalty))
        moved = torch.stack(ends) - first
        table = nn.functional.cosine_similarity(moved[:, None], moved[None], dim=2)
        table = torch.where(table > 0.9, 1.0, table).numpy()
        graph = np.stack([solved(row, alpha) for row in table])
        mixed = list(torch.tensor(graph) @ torch.stack(ends))
    name = f"pfedgraph:alpha={alpha}:strength={strength}:tested={tested}"
    algorithm, state = after(name, fed, 3)
    assert close(state["weights"], torch.tensor(graph), atol=1e-6)
    expected = ends if tested == "local" else mixed
    assert close(algorithm.models(state), torch.stack(expected), atol=1e-6)
    assert algorithm.tested_model == tested


def test_pfedgraphs_users_learn_from_their_own_group():
    users, _ = opposite()
    fed = make_federation(users)
    algorithm, state = after("pfedgraph", fed, 8)
    weights = state["weights"]
    assert weights[:2, :2].sum(1).min() > 0.9
    assert weights[2:, 2:].sum(1).min() > 0.9
    assert algorithm.metrics(fed, state)["accuracy"].min() > 0.9


def test_pfedgraph_keeps_no_optimiser_state(users):
    with pytest.raises(UcflError, match="optimiser_state = reset"):
        find("pfedgraph").check(make_federation(users, optimiser_state="keep"))


@pytest.mark.parametrize("optimiser", ["nesterov", "adam", "adamw"])
def test_pfedgraph_without_its_term_trains_as_others_do(users, optimiser):
    fed = make_federation(users, optimiser=optimiser, weight_decay=0.01)
    trained = find("pfedgraph:strength=0").trained(fed, fed.initial(), 1)
    assert close(trained, fed.train(fed.initial(), 1), atol=1e-12)


# -- FedALA ----------------------------------------------------------------------------------------


def test_fedala_learns_how_much_of_the_global_head_to_take(users, model):
    """Known mistakes: W learnt for the local model, not the mixture; lower layers mixed too."""
    rate, start_passes, head = 3.0, 4, 64 * 3 + 3
    shapes = {name: p.shape for name, p in model.named_parameters()}
    counts = [max(1, int(0.8 * n) // BATCH) for n in SIZES]
    assert counts == [2, 1, 1]

    def loss(row, x, y):
        parts = row.split([shape.numel() for shape in shapes.values()])
        tensors = {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, tensors, (x,)), y)

    globally, own = flat(model), [flat(model)] * 3
    weights = [torch.ones(head, dtype=torch.float64) for _ in range(3)]
    for t in (1, 2, 3):
        for i in range(3):
            old, new = own[i][-head:], globally[-head:]
            chosen = batches(order_of(users, t, i)[0], BATCH)[: counts[i]]
            for _ in range({1: 0, 2: start_passes, 3: 1}[t]):
                for batch in chosen:
                    w = weights[i].clone().requires_grad_()
                    row = torch.cat([globally[:-head], old + (new - old) * w])
                    (found,) = torch.autograd.grad(loss(row, *data(users, i, batch)), w)
                    weights[i] = (weights[i] - rate * found).clamp(0, 1)
            begun = torch.cat([globally[:-head], old + (new - old) * weights[i]])
            own[i] = local(users, model, begun, t, i)
        globally = sum(share * row for share, row in zip(shares(), own, strict=True))
    assert any((w < 1).any() for w in weights)
    for path in PATHS:
        fed = make_federation(users, **path)
        algorithm, state = after(f"fedala:lr={rate}:start_passes={start_passes}", fed, 3)
        assert close(state["weights"], torch.stack(weights), atol=1e-10)
        assert close(algorithm.models(state), torch.stack(own), atol=1e-11)
        assert close(state["theta"][0], globally, atol=1e-11)


def test_fedalas_work_is_that_of_who_learns_for_the_first_time_and_of_the_others(users):
    fed = make_federation(users)  # trains on 16, 7 and 8 examples, and learns from the same
    algorithm = find("fedala:start_passes=5")
    state = algorithm.start(fed)
    cohorts = ([0, 1], [0], [0, 2], [0, 1, 2], [0, 1, 2])
    passes = ([0, 0], [5], [1, 5], [1, 5, 1], [1, 1, 1])
    for t, (cohort, times) in enumerate(zip(cohorts, passes, strict=True), 1):
        present = torch.zeros(3, dtype=torch.bool)
        present[cohort] = True
        there = fed.among(present)
        before = algorithm.next_traffic(there, state)
        state = algorithm.round(there, state, t)
        trained = [(16, 7, 8)[user] for user in cohort]
        more = sum(n * count for n, count in zip(trained, times, strict=True)) / sum(trained)
        assert algorithm.traffic(there, state).work == pytest.approx(1 + more)
        assert before == algorithm.traffic(there, state)


def test_fedala_of_the_whole_model_and_of_a_layer_that_is_not_there(users, fed):
    _, state = after("fedala:part=body+head", fed, 1)
    assert state["weights"].shape == (3, fed.rows.trainable)
    with pytest.raises(UcflError, match="no part"):
        find("fedala:part=nothing").check(fed)
