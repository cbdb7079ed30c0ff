"""Federations against a loop with torch.optim.SGD, and their executors against each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import DEVICE, close, make_federation, make_users
from federation.reference import flat, load, train_one_user
from ucfl.errors import UcflError
from ucfl.execution.memory import keep_freed_memory
from ucfl.federation import Federation, LocalTraining, Pull, create
from ucfl.federation.draws import orders
from ucfl.users import Users

SIZES = [37, 64, 5, 130, 100]


def image_users(sizes=SIZES):
    rng = np.random.default_rng(0)
    pairs = [
        (rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, n))
        for n in sizes
    ]
    return Users.from_arrays(pairs, pairs, pairs, classes=10)


def smooth_batchnorm(shape, classes):
    """Convolution and BatchNorm without kinks, so that float32 does not amplify rounding."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=3),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Linear(16, classes),
    )


def two_rounds_of_fedavg(users, model, training, dtype, **path):
    """Our engine and the reference loop, two rounds of FedAvg each."""
    model = model.to(dtype)
    fed = Federation(users, model, training=training, seed=3, **path)
    share = (users.train.sizes / users.train.sizes.sum()).to(dtype)
    ours, theirs = fed.initial(), flat(model).expand(len(users), -1)
    longest = int(users.train.sizes.max())
    for t in (1, 2):
        ours = (share @ fed.train(ours, t)).expand(len(users), -1)
        order = orders(3, t, users.ids, users.train.sizes, training.epochs, longest)
        trained = [
            train_one_user(
                model,
                theirs[i],
                users.train.inputs[i].to(dtype) / 255,
                users.train.targets[i],
                order[i, :, :n],
                training.batch,
                training.lr,
                training.momentum,
            )
            for i, n in enumerate(users.train.sizes.tolist())
        ]
        theirs = (share @ torch.stack(trained)).expand(len(users), -1)
    return ours, theirs


@pytest.mark.parametrize("path", [{"chunk": 2}, {"chunk": 5}, {"plain": True}], ids=str)
@pytest.mark.parametrize("model", ["lenet5", "smooth-batchnorm"])
def test_two_rounds_agree_with_a_plain_loop_in_float32(model, path):
    users = image_users()
    if model == "lenet5":
        module = create(model, (1, 28, 28), 10, seed=1)
    else:
        torch.manual_seed(1)
        module = smooth_batchnorm((1, 28, 28), 10)
    training = LocalTraining(lr=0.01, batch=32, epochs=2)
    ours, theirs = two_rounds_of_fedavg(users, module, training, torch.float32, **path)
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("path", [{"chunk": 3}, {"plain": True}], ids=str)
@pytest.mark.parametrize("model", ["lenet5", "vgg", "mlp", "logistic"])
def test_every_model_agrees_exactly_in_float64(model, path):
    # The VGG has ReLU and max-pooling behind BatchNorm: in float32 a rounding error may flip a
    # comparison, in float64 what remains would be a mistake of ours.
    users = image_users([17, 32, 5])
    module = create(model, (1, 28, 28), 10, seed=1)
    training = LocalTraining(lr=0.05, batch=16, epochs=2)
    ours, theirs = two_rounds_of_fedavg(users, module, training, torch.float64, **path)
    assert (ours - theirs).abs().max() < 1e-11


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    batch=st.integers(1, 9),
    epochs=st.integers(1, 3),
    chunk=st.integers(1, 7),
    model=st.sampled_from(["mlp", "logistic"]),
)
def test_chunks_change_nothing_and_the_plain_path_agrees(sizes, batch, epochs, chunk, model):
    users = make_users(sizes)
    options = {"batch": batch, "epochs": epochs}
    whole, chunked, plain = (
        make_federation(users, model, **options, **path)
        for path in ({"chunk": len(sizes)}, {"chunk": chunk}, {"plain": True})
    )
    theta = whole.train(whole.initial(), 1)
    assert close(chunked.train(chunked.initial(), 1), theta, atol=1e-12)
    assert close(plain.train(plain.initial(), 1), theta, atol=1e-12)
    for split in ("test", "validation"):
        assert torch.equal(whole.metric(theta, split), plain.metric(theta, split))
        assert close(whole.loss(theta, split), plain.loss(theta, split))


def test_chunks_agree_in_float32_for_convolutions():
    users = image_users()
    model = create("lenet5", (1, 28, 28), 10, seed=1)
    training = LocalTraining(lr=0.01, batch=16)
    results = []
    for chunk in (5, 2, 1):
        fed = Federation(users, model, training=training, chunk=chunk)
        results.append(fed.train(fed.train(fed.initial(), 1), 2))
    assert (results[0] - results[1]).abs().max() < 1e-5
    assert (results[0] - results[2]).abs().max() < 1e-5


def test_steps_instead_of_epochs():
    users = make_users([20, 3, 9])
    options = {"batch": 4, "steps": 7, "last_batch": "keep"}
    fed, plain = (make_federation(users, **options, plain=plain) for plain in (False, True))
    theta = fed.train(fed.initial(), 1)
    assert close(theta, plain.train(plain.initial(), 1), atol=1e-12)
    # Seven steps of four are two passes and a bit for the user with nine: 3 + 3 + 1.
    order = orders(0, 1, users.ids, users.train.sizes, 3, 20)[2, :, :9]
    seen = torch.cat([order[0], order[1], order[2, :4]])
    model = create("mlp", users.input_shape, users.classes, seed=0).double()
    batches = [order[0, :4], order[0, 4:8], order[0, 8:], order[1, :4], order[1, 4:8], order[1, 8:]]
    batches += [order[2, :4]]
    assert torch.equal(torch.cat(batches), seen)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for chosen in batches:
        optimiser.zero_grad()
        x, y = users.train.inputs[2][chosen].double(), users.train.targets[2][chosen]
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert close(theta[2], flat(model), atol=1e-12)


@pytest.mark.parametrize("last", ["drop", "scale", "keep"])
@pytest.mark.parametrize("path", [{"chunk": 5}, {"chunk": 1}, {"plain": True}], ids=str)
def test_each_form_of_the_last_batch_is_what_a_loop_does(last, path):
    users = make_users([20, 3, 9, 16, 1])
    fed = make_federation(users, batch=8, epochs=2, last_batch=last, **path)
    theta = fed.train(fed.initial(), 1)
    model = create("mlp", users.input_shape, users.classes, seed=0).double()
    order = orders(0, 1, users.ids, users.train.sizes, 2, 20)
    for i, n in enumerate(users.train.sizes.tolist()):
        x, y = users.train.inputs[i].double(), users.train.targets[i]
        start, mine = fed.initial()[i].cpu(), order[i, :, :n]
        expected = train_one_user(model, start, x, y, mine, 8, 0.05, 0.9, last=last)
        assert close(theta[i], expected, atol=1e-12)
    seen = {"drop": 2 * (16 + 3 + 8 + 16 + 1), "scale": 2 * 49, "keep": 2 * 49}[last]
    assert fed.examples(fed.training) == seen


def test_pull_is_the_gradient_of_its_penalty():
    users = make_users([11, 7])
    fed = make_federation(users, batch=4)
    model = create("mlp", users.input_shape, users.classes, seed=0).double()
    anchor = torch.randn(fed.rows.size, dtype=torch.float64)
    drift = torch.randn(2, fed.rows.size, dtype=torch.float64)
    pulled = fed.train(
        fed.initial(), 1, Pull(0.3, towards=anchor.to(fed.device), direction=drift.to(fed.device))
    )
    order = orders(0, 1, users.ids, users.train.sizes, 1, 11)
    for i, n in enumerate([11, 7]):

        def penalty(module, i=i):
            row = torch.cat([p.reshape(-1) for p in module.parameters()])
            return 0.15 * (row - anchor).square().sum() + (drift[i] * row).sum()

        expected = train_one_user(
            model,
            fed.initial()[i],
            users.train.inputs[i].double(),
            users.train.targets[i],
            order[i, :, :n],
            4,
            0.05,
            0.9,
            penalty,
        )
        assert close(pulled[i], expected, atol=1e-12)


def test_losses_of_model_i_on_user_j(unequal_users):
    fed = make_federation(unequal_users)
    theta = fed.train(fed.initial(), 1)
    table = fed.losses(theta[:3])
    assert table.shape == (3, 5)
    full = fed.losses(theta)
    assert close(full.diagonal(), fed.loss(theta))
    model = create("mlp", unequal_users.input_shape, unequal_users.classes).double()
    load(model, theta[1])
    x, y = unequal_users.validation.inputs[3].double(), unequal_users.validation.targets[3]
    assert table[1, 3].item() == pytest.approx(nn.functional.cross_entropy(model(x), y).item())


def test_losses_among_those_who_are_present(unequal_users):
    """Known mistake: where all are marked as present, as own algorithms may, it never ended."""
    fed = make_federation(unequal_users)
    theta = fed.train(fed.initial(), 1)
    full = fed.losses(theta)
    assert close(fed.among(torch.ones(5, dtype=torch.bool)).losses(theta), full)
    here = torch.tensor([True, False, True, True, False])
    some = fed.among(here).losses(theta)
    assert close(some[here][:, here], full[here][:, here])
    assert some[~here].isnan().all()
    assert some[:, ~here].isnan().all()


@pytest.mark.filterwarnings("ignore:user-0, user-1. too few:ucfl.errors.UcflWarning")
def test_users_without_test_data_have_no_accuracy():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 4)), rng.integers(0, 2, n)) for n in (1, 2, 30)]
    users = Users.from_arrays(pairs, classes=2)
    fed = make_federation(users, "logistic")
    accuracy = fed.metric(fed.train(fed.initial(), 1))
    assert accuracy.isnan().tolist() == [True, False, False]
    assert fed.metric(fed.initial(), "validation").isnan().tolist() == [True, True, False]


def test_the_deployed_module_is_the_row():
    users = image_users([9, 5])
    fed = Federation(users, create("vgg", (1, 28, 28), 10), training=LocalTraining(batch=4))
    theta = fed.train(fed.initial(), 1)
    module = fed.module(theta[1])
    with torch.no_grad():
        right = module(users.test.inputs[1].float() / 255).argmax(1) == users.test.targets[1]
    assert right[:5].double().mean() == pytest.approx(fed.metric(theta)[1].item())


@pytest.mark.parametrize(
    "change", [lambda row: row[:-1], lambda row: row.repeat(2), torch.Tensor.half]
)
def test_a_row_of_another_model_is_refused(change):
    fed = make_federation(make_users([5]), "logistic", double=False)
    with pytest.raises(UcflError, match="is none of this model, which has 111 in"):
        fed.module(change(fed.initial()[0]))


@pytest.mark.parametrize("path", [{"chunk": 3}, {"chunk": 1}, {"plain": True}], ids=str)
def test_a_model_that_writes_to_its_inputs_leaves_the_data_alone(path, traced):
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(36, 3)

        def forward(self, x):
            return self.last(x.mul_(0.5).flatten(1))

    users = make_users([20, 8, 13])
    before = users.checksum()
    fed = Federation(users, Halved(), training=LocalTraining(batch=8), device=DEVICE, **path)
    first = fed.outputs(fed.initial(), "train")
    fed.train(fed.initial(), 1)
    assert torch.equal(fed.outputs(fed.initial(), "train"), first)
    assert fed.users.checksum() == before


def test_training_learns():
    users = make_users([60] * 4, held=50)
    fed = make_federation(users)
    theta = fed.initial()
    before = fed.metric(theta).mean()
    for t in range(1, 6):
        theta = fed.train(theta, t)
    assert fed.metric(theta).mean() > max(0.9, before + 0.2)


def test_models_that_do_not_fit_are_one_sentence():
    users = make_users([5, 5])
    with pytest.raises(
        UcflError, match=r"does not take inputs of shape .*: change its first layer"
    ):
        Federation(users, nn.Linear(3, 3))
    with pytest.raises(UcflError, match="outputs of shape"):
        Federation(users, nn.Sequential(nn.Flatten(), nn.Linear(36, 7)))
    with pytest.raises(UcflError, match="no trainable parameter"):
        Federation(users, nn.Flatten())


def test_more_than_the_memory_there_is_is_refused_before_it_is_allocated(monkeypatch):
    users = make_users([5, 5])
    fed = make_federation(users)
    monkeypatch.setattr("ucfl.memory.total_memory", lambda device: 1e5)
    with pytest.raises(UcflError, match=r"2 users' models of .* would take 0.0 GB"):
        make_federation(users)
    with pytest.raises(UcflError, match=r"in 2000 passes over them would take .* fewer epochs"):
        fed.examples(LocalTraining(batch=5, epochs=2000))


# -- the collaboration round -------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch=st.one_of(st.integers(1, 40), st.floats(0.05, 0.99)),
    chunk=st.integers(1, 5),
    plain=st.booleans(),
)
def test_collaboration_round_is_equation_9(sizes, batch, chunk, plain):
    users = make_users(sizes)
    fed = make_federation(users, chunk=chunk, plain=plain)
    result = fed.collaboration_round(fed.initial(), batch)
    model = create("mlp", users.input_shape, users.classes, seed=0).double()

    def gradient(i, chosen):
        x, y = users.train.inputs[i][chosen].double(), users.train.targets[i][chosen]
        loss = nn.functional.cross_entropy(model(x), y)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])

    for i, n in enumerate(sizes):
        size = min(n, max(1, int(n * batch) if batch < 1 else int(batch)))
        order = orders(0, 0, users.ids, users.train.sizes, 1, max(sizes))[i, 0, :n]
        full = gradient(i, torch.arange(n))
        parts = [order[k * size : (k + 1) * size] for k in range(n // size)]
        variance = sum((gradient(i, p) - full).square().sum() for p in parts) / len(parts)
        assert close(result.full[i], full, atol=1e-12)
        assert result.variances[i].item() == pytest.approx(variance.item(), rel=1e-9, abs=1e-18)
        assert (int(result.batch[i]), int(result.batches[i])) == (size, n // size)


def test_freed_memory_is_kept_for_the_next_step():
    """A process that takes and frees the same megabytes does not fault them in again."""
    resource = pytest.importorskip("resource")
    if not keep_freed_memory():
        pytest.skip("this C library cannot be asked")
    for _ in range(3):
        blocks = [torch.ones(1 << 20) for _ in range(8)]
        del blocks
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [torch.ones(1 << 20) for _ in range(8)]
        del blocks
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 8 * 1024  # a tenth of the 10 x 32 MB in pages of 4 kB
