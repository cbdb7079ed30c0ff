"""FedRep, LG-FedAvg, FedBN, FedBABU and APFL against loops written from their publications.

The loops know modules and torch.optim, nothing of Θ, parts or the engine. They share the order of
the examples, which is an input.
"""

import copy

import pytest
import torch
from torch import nn

import ucfl
from algorithms import loops
from algorithms.loops import BATCH, LR, MOMENTUM, SIZES, after, local, order_of, shares
from conftest import DEVICE, close, make_federation, make_users
from federation.reference import batches, flat
from ucfl.algorithms import find
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining, schedule
from ucfl.federation.draws import orders
from ucfl.federation.schedule import MOST_PASSES

users, fed, model = map(pytest.fixture, (loops.users, loops.fed, loops.model))
HEAD, BODY = ("5.weight", "5.bias"), ("1.weight", "1.bias", "3.weight", "3.bias")


def partly(users, module, t, user, names, epochs=1, draw=0):
    """Train some of a module's parameters in place; the others have no gradient."""
    chosen = [
        parameter.requires_grad_(name in names) for name, parameter in module.named_parameters()
    ]
    optimiser = torch.optim.SGD([p for p in chosen if p.requires_grad], LR, MOMENTUM)
    x, y = users.train.inputs[user].double(), users.train.targets[user]
    sizes, first = users.train.sizes, draw * MOST_PASSES
    order = orders(0, t, users.ids, sizes, epochs, max(SIZES), first)[user, :, : SIZES[user]]
    for batch in (each for epoch in order for each in batches(epoch, BATCH)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
    for parameter in chosen:
        parameter.requires_grad_()


def average(modules, names):
    """Give all modules the average of some of their tensors."""
    states = [module.state_dict() for module in modules]
    for name in names:
        mean = sum(share * state[name] for share, state in zip(shares(), states, strict=True))
        for state in states:
            state[name].copy_(mean)


def rows(modules):
    return torch.stack([flat(module) for module in modules])


@pytest.mark.parametrize("path", [{}, {"plain": True}], ids=str)
def test_fedrep_trains_the_head_then_the_body(users, model, path):
    modules = [copy.deepcopy(model) for _ in SIZES]
    for t in (1, 2, 3):
        for i, module in enumerate(modules):
            partly(users, module, t, i, HEAD, epochs=4)
            partly(users, module, t, i, BODY, draw=1)
        average(modules, BODY)
    fed = make_federation(users, **path)
    algorithm, state = after("fedrep:head_epochs=4", fed, 3)
    assert close(algorithm.models(state), rows(modules), atol=1e-10)
    traffic, body = algorithm.traffic(fed, state), fed.part("body").share
    assert (traffic.down, traffic.up, traffic.work) == (body, body, 5)


def test_fedreps_head_has_its_epochs_where_the_body_has_a_number_of_steps(users):
    fed = make_federation(users, steps=2)
    few, many = (find(f"fedrep:head_epochs={count}") for count in (1, 4))
    assert not close(*(each.local(fed, fed.initial(), 1) for each in (few, many)))
    heads = [each.traffic(fed, {}).work - 1 for each in (few, many)]
    assert heads[1] == pytest.approx(4 * heads[0])


def test_fedreps_epochs_are_those_of_the_official_code():
    assert find("fedrep").head_epochs == 10


def test_lg_fedavg_averages_the_head_alone(users, fed, model):
    modules = [copy.deepcopy(model) for _ in SIZES]
    for t in (1, 2, 3):
        for i, module in enumerate(modules):
            partly(users, module, t, i, HEAD + BODY)
        average(modules, HEAD)
    algorithm, state = after("lg-fedavg", fed, 3)
    assert close(algorithm.models(state), rows(modules), atol=1e-10)
    assert algorithm.traffic(fed, state).up == pytest.approx(fed.part("head").share)


@pytest.mark.parametrize("path", [{}, {"plain": True}], ids=str)
def test_fedbabu_never_trains_the_head_until_it_is_fine_tuned(users, model, path):
    modules = [copy.deepcopy(model) for _ in SIZES]
    for t in (1, 2):
        for i, module in enumerate(modules):
            partly(users, module, t, i, BODY)
        average(modules, BODY)
    assert torch.equal(modules[0][5].weight, model[5].weight)
    tuned = [local(users, model, flat(modules[i]), 3, i, epochs=2) for i in range(3)]
    fed = make_federation(users, **path)
    algorithm, state = after("fedbabu:finetune_epochs=2", fed, 2)
    assert close(state["theta"], rows(modules), atol=1e-10)
    assert close(algorithm.models(state), torch.stack(tuned), atol=1e-10)
    traffic, body = algorithm.traffic(fed, state), fed.part("body").share
    assert (traffic.down, traffic.up, traffic.work) == (body, body, 3)
    assert find("fedbabu").finetune_epochs == 5
    assert close(algorithm.newcomers(fed, state, fed), rows(modules), atol=1e-10)


def test_fedbn_shares_everything_but_normalisation():
    users = make_users(SIZES, shape=(5,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    training = LocalTraining(lr=LR, momentum=MOMENTUM, batch=BATCH)
    fed = Federation(users, model, training=training, device=DEVICE)
    shared, everything = (
        ("0.weight", "0.bias", "3.weight", "3.bias"),
        dict(model.named_parameters()),
    )
    modules = [copy.deepcopy(model).train() for _ in SIZES]
    for t in (1, 2, 3):
        for i, module in enumerate(modules):
            partly(users, module, t, i, everything)
        average(modules, shared)
    algorithm, state = after("fedbn", fed, 3)
    assert close(algorithm.models(state), rows(modules), atol=1e-10)
    _, same = after("fedper:personal=normalisation", fed, 3)
    assert torch.equal(same["theta"], state["theta"])
    assert algorithm.traffic(fed, state).up == pytest.approx(1 - fed.part("normalisation").share)


@pytest.mark.parametrize(
    ("name", "scenario", "sentence"),
    [
        (
            "fedbn",
            "mlp",
            "FedBN keeps normalisation layers with their users, and the model has none",
        ),
        ("fedrep", "logistic", "'head' is the whole model, so FedRep would average nothing"),
        ("lg-fedavg", "logistic", "the model has no part 'body'"),
        ("fedbabu", "logistic", "the head is all that the model trains"),
    ],
)
def test_a_model_that_cannot_be_shared_so_is_told_in_one_sentence(
    name, scenario, sentence, tmp_path
):
    settings = ucfl.Scenario(name="three", users=3, rounds=1, model=scenario)
    with pytest.raises(UcflError) as told:
        ucfl.run(settings, name, users=make_users(SIZES), out=tmp_path / "r")
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("path", [{}, {"chunk": 2}, {"plain": True}], ids=str)
def test_apfl_mixes_its_own_and_the_global_model(users, model, path, optimiser):
    """α moves once a round, v̄ is differentiated for v, and what is tested has the averaged w."""
    alpha, rate, decay = [0.3] * 3, 0.4, 0.01
    make = {"sgd": lambda p: torch.optim.SGD(p, LR, MOMENTUM, weight_decay=decay),
            "adam": lambda p: torch.optim.Adam(p, LR, weight_decay=decay)}[optimiser]  # fmt: skip
    globally, own = flat(model), [flat(model).clone() for _ in SIZES]

    def loss(row, chosen, i):
        names, parameters = zip(*model.named_parameters(), strict=True)
        pieces = row.split([p.numel() for p in parameters])
        views = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        tensors = dict(zip(names, views, strict=True))
        x, y = users.train.inputs[i][chosen].double(), users.train.targets[i][chosen]
        return nn.functional.cross_entropy(torch.func.functional_call(model, tensors, (x,)), y)

    for t in (1, 2, 3):
        ends = []
        for i in range(3):
            w, v = (row.clone().requires_grad_() for row in (globally, own[i]))
            of_w, of_v = make([w]), make([v])
            for step, chosen in enumerate(batches(order_of(users, t, i)[0], BATCH)):
                share = torch.tensor(alpha[i], dtype=torch.float64, requires_grad=True)
                (w.grad,) = torch.autograd.grad(loss(w, chosen, i), w)
                mixture = share * v + (1 - share) * w.detach()
                v.grad, slope = torch.autograd.grad(loss(mixture, chosen, i), (v, share))
                if step == 0:
                    alpha[i] = min(max(alpha[i] - rate * float(slope), 0.0), 1.0)
                of_w.step()
                of_v.step()
            own[i] = v.detach()
            ends.append(w.detach())
        globally = sum(share * row for share, row in zip(shares(), ends, strict=True))
    mixed = [a * v + (1 - a) * globally for a, v in zip(alpha, own, strict=True)]
    settings = {"optimiser": optimiser, "weight_decay": decay, "momentum": MOMENTUM}
    fed = make_federation(users, **settings, **path)
    algorithm, state = after(f"apfl:alpha=0.3:alpha_lr={rate}", fed, 3)
    assert close(state["alpha"], torch.tensor(alpha, dtype=torch.float64), atol=1e-10)
    assert len({*alpha}) == 3
    assert close(state["own"], torch.stack(own), atol=1e-9)
    assert close(algorithm.models(state), torch.stack(mixed), atol=1e-9)


def test_apfls_share_moves_with_the_rate_of_the_round(users):
    """η_α is η of the round unless it is given, and then follows the same schedule."""
    rates = LocalTraining(lr=LR, batch=BATCH, schedule=schedule("steps:at=1", 3))
    found = []
    for name in ("apfl", f"apfl:alpha_lr={LR}"):
        fed = make_federation(users, schedule=rates.schedule)
        found.append(after(name, fed, 3)[1]["alpha"])
    assert torch.equal(*found)
    assert found[0].sub(0.5).abs().min() > 0


def test_apfls_share_stays_between_0_and_1(users, fed):
    algorithm, state = after("apfl:alpha_lr=1000", fed, 6)
    assert ((state["alpha"] >= 0) & (state["alpha"] <= 1)).all()
    assert algorithm.models(state).isfinite().all()


def test_apfl_takes_no_kept_optimisers(users):
    fed = make_federation(users, optimiser_state="keep")
    with pytest.raises(UcflError, match="optimiser_state = reset"):
        find("apfl").check(fed)
