"""Each optimiser and each schedule against PyTorch's own, user by user, in float64."""

import copy

import pytest
import torch
from torch import nn

import ucfl
from conftest import DEVICE, close, make_users
from federation.reference import batches, flat
from ucfl.algorithms import find
from ucfl.errors import UcflError, UcflWarning
from ucfl.federation import Federation, LocalTraining, Memory, Pull, create, schedule
from ucfl.federation.draws import orders
from ucfl.users import Scenario

SIZES, BATCH, EPOCHS = [20, 8, 1, 33, 13], 8, 2
TORCH = {
    "sgd": lambda p, lr, decay: torch.optim.SGD(p, lr, 0.8, weight_decay=decay),
    "nesterov": lambda p, lr, decay: torch.optim.SGD(p, lr, 0.8, weight_decay=decay, nesterov=True),
    "adam": lambda p, lr, decay: torch.optim.Adam(p, lr, weight_decay=decay),
    "adamw": lambda p, lr, decay: torch.optim.AdamW(p, lr, weight_decay=decay),
}
EXECUTORS = [{"chunk": 2}, {"chunk": 5}, {"plain": True}]


def federation(users, training, **options):
    model = create("mlp", users.input_shape, users.classes, seed=0).double()
    return Federation(users, model, training=training, device=DEVICE, **options)


def looped(users, name, rounds, *, lr, decay=0.0, keep=False, pull=None, rates=None):
    """The rows after some rounds of a loop with ``torch.optim``, a model for each user."""
    rows = []
    for i, n in enumerate(SIZES):
        model = create("mlp", users.input_shape, users.classes, seed=0).double().train()
        start = flat(model)
        optimiser = TORCH[name](model.parameters(), lr, decay)
        x, y = users.train.inputs[i].double(), users.train.targets[i]
        for t in range(1, rounds + 1):
            if not keep:
                optimiser = TORCH[name](model.parameters(), lr, decay)
            for group in optimiser.param_groups:
                group["lr"] = lr * (rates(t) if rates else 1)
            order = orders(0, t, users.ids, users.train.sizes, EPOCHS, max(SIZES))[i, :, :n]
            for epoch in order:
                for chosen in batches(epoch, BATCH):
                    optimiser.zero_grad()
                    loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
                    if pull:
                        weights = torch.cat([p.reshape(-1) for p in model.parameters()])
                        loss = loss + pull / 2 * (weights - start).square().sum()
                    loss.backward()
                    optimiser.step()
        rows.append(flat(model))
    return torch.stack(rows)


def trained(fed, rounds, keep=False):
    theta, state = fed.initial(), {}
    for t in range(1, rounds + 1):
        here = fed.among(None, Memory.of(state)) if keep else fed
        theta = here.train(theta, t)
        state = here.memory.after
    return theta


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize("name", TORCH)
def test_each_optimiser_is_the_one_of_pytorch(name, decay, state, executor, traced):
    users, lr = make_users(SIZES), 0.02
    training = LocalTraining(
        lr=lr,
        momentum=0.8,
        batch=BATCH,
        epochs=EPOCHS,
        optimiser=name,
        optimiser_state=state,
        weight_decay=decay,
    )
    keep = state == "keep"
    ours = trained(federation(users, training, **executor), 2, keep)
    assert close(ours, looped(users, name, 2, lr=lr, decay=decay, keep=keep), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_pull_is_part_of_the_loss_for_every_optimiser(name):
    users, lr = make_users(SIZES), 0.02
    training = LocalTraining(
        lr=lr, momentum=0.8, batch=BATCH, epochs=EPOCHS, optimiser=name, weight_decay=0.03
    )
    fed = federation(users, training)
    ours = fed.train(fed.initial(), 1, Pull(0.7, towards=fed.initial()))
    assert close(ours, looped(users, name, 1, lr=lr, decay=0.03, pull=0.7), rtol=0, atol=1e-9)


def pytorchs(make, rounds, **warm):
    """The factors of one of PyTorch's schedulers."""
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimiser)
    factors = []
    for _ in range(rounds):
        factors.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return factors


def warmed(optimiser, then, warmup):
    lr = torch.optim.lr_scheduler
    rise = lr.LinearLR(optimiser, 1 / (warmup + 1), total_iters=warmup)
    return lr.SequentialLR(optimiser, [rise, then(optimiser)], [warmup])


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("constant", lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0)),
        ("steps:at=3+7:factor=0.2", lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 7], 0.2)),
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)),
        (
            "cosine:least=0.1:warmup=3",
            lambda o: warmed(
                o, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7, 0.1), warmup=3
            ),
        ),
    ],
)
def test_each_schedule_is_the_one_of_pytorch(text, make):
    ours = [schedule(text, rounds=10)(t) for t in range(1, 11)]
    assert ours == pytest.approx(pytorchs(make, 10), abs=1e-12)


def test_a_warm_up_rises_to_the_rate():
    rate = schedule("constant:warmup=4", rounds=9)
    assert [rate(t) for t in range(1, 8)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1])


@pytest.mark.parametrize("name", ["nesterov", "adam"])
def test_fifty_rounds_with_as_many_rates_are_traced_once(name, traced):
    users, rates = make_users(SIZES), schedule("cosine:warmup=5", 50)
    training = LocalTraining(
        lr=0.02, momentum=0.8, batch=BATCH, epochs=EPOCHS, optimiser=name, schedule=rates
    )
    fed = federation(users, training)
    fed.train(fed.initial(), 1)
    once = fed.executor.traces
    assert once > 0
    ours = trained(fed, 50)
    assert fed.executor.traces == once
    reference = looped(users, name, 50, lr=0.02, rates=rates)
    assert close(ours, reference, rtol=0, atol=1e-6)  # rounding grows from round to round


SCENARIO = Scenario(
    users=4, points=200, model="mlp", batch=16, rounds=4, optimiser="adam", lr=0.01
).change({"optimiser_state": "keep", "schedule": "steps:at=2", "weight_decay": 1e-3})


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedmoe", "fedrep", "fedbabu"])
def test_kept_states_are_part_of_a_run_and_of_its_checkpoint(name, tmp_path):
    whole = ucfl.run(SCENARIO, name, out=tmp_path / "whole")
    half = ucfl.run(SCENARIO, name, rounds=2, out=tmp_path / "half")
    parts = [key for key in half.checkpoint.state if key.startswith("optimiser/")]
    trainings = 2 if name in ("ditto", "fedrep", "fedbabu") else 1
    assert len(parts) == 3 * trainings  # two moments and a count, for each training
    half = ucfl.run(SCENARIO, name, out=tmp_path / "half", resume=True)
    for key, value in whole.checkpoint.state.items():
        other = half.checkpoint.state[key]
        assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value, key
    anew = ucfl.run(SCENARIO.change({"optimiser_state": "reset"}), name, out=tmp_path / "anew")
    theta = find(name).models
    assert not torch.equal(theta(anew.checkpoint.state), theta(whole.checkpoint.state))


def test_more_rounds_are_another_run_where_the_rates_follow_their_number(tmp_path):
    scenario = SCENARIO.change({"schedule": "cosine", "optimiser_state": "reset"})
    ucfl.run(scenario, "fedavg", out=tmp_path / "r")
    with pytest.raises(UcflError, match="different rounds"):
        ucfl.run(scenario, "fedavg", rounds=6, out=tmp_path / "r", resume=True)


def test_a_state_that_nobody_keeps_is_refused():
    fed = federation(make_users(SIZES), LocalTraining(optimiser_state="keep"))
    with pytest.raises(UcflError, match=r"kept by a run.*reset"):
        fed.train(fed.initial(), 1)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"schedule": "sawtooth"}, "unknown schedule 'sawtooth'"),
        ({"schedule": "steps"}, "needs rounds"),
        ({"schedule": "steps:at=0"}, "greater than or equal to 1"),
        ({"schedule": "cosine:least=2"}, "less than or equal to 1"),
        ({"optimiser": "lion"}, "'sgd', 'nesterov', 'adam' or 'adamw'"),
        ({"weight_decay": -1}, "greater than or equal to 0"),
    ],
)
def test_mistakes_are_told_in_one_sentence(fields, match, tmp_path):
    with pytest.raises(UcflError, match=match):
        ucfl.run(SCENARIO.change(fields), "fedavg", out=tmp_path / "r")


@pytest.mark.parametrize("name", ["scaffold", "pfedme"])
def test_methods_with_steps_of_their_own_take_no_other(name, tmp_path):
    with pytest.raises(UcflError, match="optimiser = sgd"):
        ucfl.run(SCENARIO, name, out=tmp_path / "r")


def test_scaffolds_variates_follow_the_rounds_rate():
    """With one step a round and no momentum, a variate is the gradient, whatever the rate is."""
    users = make_users([8, 8, 8])
    found = []
    for text in ("constant", "steps:at=1"):
        training = LocalTraining(lr=0.1, momentum=0.0, batch=8, schedule=schedule(text, 3))
        fed, method = federation(users, training), find("scaffold:epochs=1")
        state = copy.copy(method.start(fed))
        state = method.round(fed, {**state}, 2)
        found.append(state["variates"])
    assert found[0].abs().max() > 1e-3
    assert close(found[0], found[1], rtol=1e-6, atol=1e-9)


def test_what_comes_after_the_last_round_has_the_last_ones_rate():
    """Known mistake: a cosine is 0 there, and fine-tuning after the last round did nothing."""
    rate = schedule("cosine:least=0.1", 10)
    assert rate(11) == rate(10) > 0.1
    users = make_users([20, 9])
    low = find("fedavg-finetune")
    for text in ("cosine", "steps:at=31:factor=0.001"):
        fed = federation_with(text, users)
        with pytest.warns(UcflWarning, match="fedavg-finetune: the schedule is under 1%"):
            low.round(fed, low.start(fed), 32)
    fed = federation_with("steps:at=100:factor=0.001", users)  # later than the last round
    low.round(fed, low.start(fed), 32)  # says nothing
    for name in ("fedavg-finetune", "per-fedavg"):
        fed, algorithm = federation_with("cosine:least=0.1", users), find(name)
        state = algorithm.round(fed, algorithm.start(fed), 32)
        assert not torch.equal(state["personal"], state["theta"])


def federation_with(text, users):
    training = LocalTraining(lr=0.1, batch=4, schedule=schedule(text, 32))
    return Federation(users, create("mlp", (1, 6, 6), 3, 0), training=training)
