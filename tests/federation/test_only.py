"""Training a part of the model, against loops in which all else has ``requires_grad`` False.

The loops know modules and ``torch.optim``; they share the order of the examples, which is an input.
Frozen layers are in training mode there too, and what BatchNorm remembers of them is put back.
"""

import pytest
import torch
from torch import nn

from conftest import DEVICE, close, make_users
from federation.reference import batches, flat
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining, Memory, Pull
from ucfl.federation.draws import orders
from ucfl.federation.schedule import MOST_PASSES
from ucfl.parts import Part

SIZES, BATCH, EPOCHS, LR = [20, 8, 5, 33, 13], 8, 2, 0.02
TORCH = {
    "sgd": lambda p, decay: torch.optim.SGD(p, LR, 0.8, weight_decay=decay),
    "nesterov": lambda p, decay: torch.optim.SGD(p, LR, 0.8, weight_decay=decay, nesterov=True),
    "adam": lambda p, decay: torch.optim.Adam(p, LR, weight_decay=decay),
    "adamw": lambda p, decay: torch.optim.AdamW(p, LR, weight_decay=decay),
}
EXECUTORS = [{"chunk": 2}, {"chunk": 5}, {"plain": True}]
#: Layers of the model by what is trained: the end of a row, its beginning, something in between.
PARTS = {"head": ["6"], "body": ["1", "2", "4"], "2+6": ["2", "6"], "2": ["2"], "1": ["1"]}


def normalised():
    """No bias before the normalisation: its gradient is rounding, and Adam makes steps of that."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(36, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh()),
        *(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)),
    ).double()


def federation(users, executor, **training):
    settings = LocalTraining(lr=LR, momentum=0.8, batch=BATCH, epochs=EPOCHS, **training)
    return Federation(users, normalised(), training=settings, device=DEVICE, **executor)


def looped(users, name, layers, rounds=2, *, decay=0.0, keep=False, pull=None, draw=0):
    """Each user's row after some rounds of training these layers, and the module's own row."""
    rows = []
    for i, n in enumerate(SIZES):
        model = normalised().train()
        start = flat(model)
        trained = [p for key, p in model.named_parameters() if key.split(".")[0] in layers]
        for p in model.parameters():
            p.requires_grad_(any(p is one for one in trained))
        x, y = users.train.inputs[i].double(), users.train.targets[i]
        optimiser = TORCH[name](trained, decay)
        for t in range(1, rounds + 1):
            if not keep:
                optimiser = TORCH[name](trained, decay)
            first = draw * MOST_PASSES
            order = orders(0, t, users.ids, users.train.sizes, EPOCHS, max(SIZES), first)[i, :, :n]
            for chosen in (each for epoch in order for each in batches(epoch, BATCH)):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
                if pull:
                    now = torch.cat([p.reshape(-1) for p in model.parameters()])
                    loss = loss + pull / 2 * (now - start[: len(now)]).square().sum()
                loss.backward()
                optimiser.step()
        if "2" not in layers:
            model[2].reset_running_stats()
        for p in model.parameters():
            p.requires_grad_()
        rows.append(flat(model))
    return torch.stack(rows)


def trained(fed, only, rounds=2, **options):
    theta, state = fed.initial(), {}
    for t in range(1, rounds + 1):
        here = fed.among(None, Memory.of(state))
        theta = here.train(theta, t, only=only, **options)
        state = here.memory.after
    return theta


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", TORCH)
def test_only_a_part_is_trained(name, part, executor, traced):
    users, decay = make_users(SIZES), 0.03
    fed = federation(users, executor, optimiser=name, weight_decay=decay)
    ours = trained(fed, fed.part(part))
    assert close(ours, looped(users, name, PARTS[part], decay=decay), rtol=0, atol=1e-9)
    others = ~fed.part(part)
    assert torch.equal(others.of(ours), others.of(fed.initial()))


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("name", TORCH)
def test_a_kept_state_is_that_of_the_part(name, executor):
    users = make_users(SIZES)
    fed = federation(users, executor, optimiser=name, optimiser_state="keep")
    ours = trained(fed, fed.part("body"), rounds=3)
    assert close(ours, looped(users, name, PARTS["body"], 3, keep=True), rtol=0, atol=1e-9)
    here = fed.among(None, Memory.of({}))
    here.train(fed.initial(), 1, only=fed.part("body"))
    inside = (fed.rows.trained & fed.part("body")).count
    assert here.memory.after["optimiser/0/0"].shape == (5, inside)


def test_a_pull_acts_in_the_part_alone():
    users = make_users(SIZES)
    fed = federation(users, {})
    ours = trained(fed, fed.part("head"), pull=Pull(0.7, towards=fed.initial()))
    assert close(ours, looped(users, "sgd", PARTS["head"], pull=0.7), rtol=0, atol=1e-9)


def test_another_draw_has_other_batches():
    users = make_users(SIZES)
    fed = federation(users, {})
    ours = trained(fed, fed.part("head"), draw=1)
    assert close(ours, looped(users, "sgd", PARTS["head"], draw=1), rtol=0, atol=1e-9)
    assert not close(ours, trained(fed, fed.part("head")), atol=1e-6)
    assert torch.equal(ours, trained(fed, fed.part("head"), draw=1))


def test_all_parts_together_are_the_whole_model():
    fed = federation(make_users(SIZES), {})
    everything = Part("everything", ((0, fed.rows.size),), fed.rows.size)
    assert torch.equal(trained(fed, everything), trained(fed, None))


def test_absent_users_keep_their_rows():
    fed = federation(make_users(SIZES), {})
    present = torch.tensor([True, False, True, False, True], device=fed.device)
    whole = fed.train(fed.initial(), 1, only=fed.part("head"))
    some = fed.among(present).train(fed.initial(), 1, only=fed.part("head"))
    assert close(some[present], whole[present], atol=1e-12)
    assert torch.equal(some[~present], fed.initial()[~present])


def test_nothing_is_traced_again(traced):
    fed = federation(make_users(SIZES), {})
    theta = fed.initial()
    counts = []
    for t in range(1, 5):
        for draw, part in enumerate(("head", "body")):
            theta = fed.train(theta, t, only=fed.part(part), draw=draw)
        counts.append(fed.executor.traces)
    assert set(counts) == {counts[0]}


def test_a_part_without_trained_parameters_leaves_them_alone():
    fed = federation(make_users(SIZES), {})
    for part in (Part("nothing", (), fed.rows.size), fed.part("2") - fed.rows.trained):
        theta = fed.train(fed.initial(), 1, only=part)
        assert torch.equal((~part).of(theta), (~part).of(fed.initial()))
        assert torch.equal(theta, fed.initial()) == (part.name == "nothing")


def test_parts_that_cannot_be_trained_are_told_in_one_sentence():
    fed = federation(make_users(SIZES), {})
    with pytest.raises(UcflError, match=r"some columns of 1.weight and not all"):
        fed.train(fed.initial(), 1, only=Part("half", ((0, 100),), fed.rows.size))
    with pytest.raises(UcflError, match="take it from this federation"):
        fed.train(fed.initial(), 1, only=Part("other", ((0, 3),), 3))
