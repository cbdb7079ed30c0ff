"""BatchNorm and Dropout, which couple the examples of a batch."""

import numpy as np
import pytest
import torch
from torch import nn

from conftest import close, make_federation, make_users
from ucfl.collaboration import Mixing
from ucfl.errors import UcflWarning
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.layers import Context, KeyedDropout, PaddedBatchNorm
from ucfl.users import Users


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 3, 3)])
@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
@pytest.mark.parametrize("affine", [True, False])
def test_padded_batchnorm_equals_pytorchs_on_the_real_examples(shape, momentum, affine):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    theirs = kind(4, momentum=momentum, affine=affine).double()
    context = Context()
    ours = PaddedBatchNorm(kind(4, momentum=momentum, affine=affine).double(), context)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64)
        context.real = torch.tensor([1, 1, 0, 1, 0, 1], dtype=torch.bool)
        assert close(ours(x)[context.real], theirs(x[context.real]))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert close(getattr(ours, name), getattr(theirs, name))
    ours.eval()
    theirs.eval()
    assert close(ours(x), theirs(x))


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3, 3)])
@pytest.mark.parametrize("real", [None, [1, 1, 0, 1, 0, 1]])
@pytest.mark.parametrize("affine", [True, False])
def test_padded_batchnorms_written_out_gradient(shape, real, affine):
    """By finite differences, padding included; and PyTorch's, where there is none."""
    context = Context(None if real is None else torch.tensor(real, dtype=torch.bool))
    theirs = (
        nn.BatchNorm1d(4, affine=affine) if len(shape) == 2 else nn.BatchNorm2d(4, affine=affine)
    )
    for parameter in theirs.double().parameters():
        nn.init.normal_(parameter)
    ours = PaddedBatchNorm(theirs, context)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    leaves = (x, *theirs.parameters())
    assert torch.autograd.gradcheck(lambda *_: ours(x), leaves)
    weight = torch.randn(shape, dtype=torch.float64)
    if real is None:
        for a, b in zip(
            torch.autograd.grad((ours(x) * weight).sum(), leaves),
            torch.autograd.grad((theirs(x) * weight).sum(), leaves),
            strict=True,
        ):
            assert close(a, b)


def test_a_batch_of_one_value_trains_where_pytorch_raises():
    ours = PaddedBatchNorm(nn.BatchNorm1d(3), Context())
    assert torch.isfinite(ours(torch.randn(1, 3))).all()
    assert torch.isfinite(ours.running_var).all()


def batchnorm_federation(sizes, **options):
    users = make_users(sizes, shape=(5,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    return Federation(users, model, training=LocalTraining(batch=4, lr=0.05), **options)


def test_batchnorm_buffers_are_part_of_the_row_and_mixed_with_w():
    fed = batchnorm_federation([9, 30, 4])
    trained = fed.train(fed.initial(), 1)
    buffers = slice(fed.rows.trainable, None)
    assert not close(trained[0, buffers], trained[1, buffers])  # each user has its own
    mixed = Mixing.average(fed.sizes) @ trained
    share = (fed.sizes / fed.sizes.sum()).double()
    expected = (share[:, None] * trained).sum(0)
    assert close(mixed[0, buffers], expected[buffers])
    module = fed.module(mixed[0])
    running = torch.cat([module[1].running_mean, module[1].running_var])
    assert close(running, expected[buffers][:16])
    assert module[1].num_batches_tracked == round(expected[-1].item())


def test_buffers_do_not_leak_between_users_or_calls():
    fed = batchnorm_federation([9, 30, 4])
    start = fed.initial().clone()
    first = fed.train(fed.initial(), 1)
    fed.metric(first)
    assert torch.equal(fed.initial(), start)
    assert torch.equal(fed.train(fed.initial(), 1), first)
    alone = Federation(
        fed.users.select([2]), fed.module(start[0]), training=fed.training, plain=True
    )
    assert close(alone.train(alone.initial(), 1)[0], first[2], atol=1e-12)


def dropout_model(kind):
    if kind is nn.Dropout:
        return nn.Sequential(nn.Linear(5, 8), kind(0.4), nn.Tanh(), nn.Linear(8, 3)).double()
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 6, 3), kind(0.4), nn.Flatten(), nn.Linear(18, 3)
    ).double()


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d])
def test_dropout_depends_on_seed_round_and_user_alone(kind):
    users = make_users([9, 30, 4], shape=(5,))
    torch.manual_seed(0)
    model = dropout_model(kind)

    def trained(t=1, **options):
        fed = Federation(users, model, training=LocalTraining(batch=4, lr=0.05), **options)
        return fed.train(fed.initial(), t)

    whole = trained()
    assert close(trained(chunk=2), whole, atol=1e-12)
    assert close(trained(plain=True), whole, atol=1e-12)
    assert not close(trained(t=2), whole)
    assert not close(trained(seed=1), whole)


def test_dropout_drops_its_share_and_keeps_the_mean():
    layer = KeyedDropout(nn.Dropout(0.3), Context(key=torch.tensor(5)), salt=0)
    out = layer(torch.ones(1000, 50))
    assert (out == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    layer.eval()
    assert torch.equal(layer(out), out)


def test_shared_layers_and_own_modules_are_adapted_once():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(5)
            self.again = self.norm
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.again(torch.tanh(self.norm(x))))

    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 5)), rng.integers(0, 3, n)) for n in (6, 11)]
    users = Users.from_arrays(pairs, pairs, pairs, classes=3)
    fed = Federation(users, Own().double(), training=LocalTraining(batch=4))
    assert fed.rows.trainable == 10 + 18
    theta = fed.train(fed.initial(), 1)
    plain = Federation(users, fed.module(fed.initial()[0]), training=fed.training, plain=True)
    assert close(plain.train(plain.initial(), 1), theta, atol=1e-12)


def test_one_user_is_trained_as_by_the_plain_path():
    users = make_users([9])
    one, plain = make_federation(users), make_federation(users, plain=True)
    assert close(one.train(one.initial(), 1), plain.train(plain.initial(), 1))


def test_a_subclass_of_batchnorm_keeps_its_own_forward():
    class Doubled(nn.BatchNorm1d):
        def forward(self, x):
            return 2 * super().forward(x)

    users = make_users([9, 30, 4], shape=(5,))
    model = nn.Sequential(nn.Linear(5, 8), Doubled(8), nn.Tanh(), nn.Linear(8, 3)).double()
    with pytest.warns(UcflWarning, match="one after another"):  # it sees what pads a batch
        fed = Federation(users, model, training=LocalTraining(batch=4, last_batch="keep"))
    out = fed.outputs(fed.initial())[0]
    with torch.no_grad():
        assert close(out, model.eval()(users.test.inputs[0].double()), atol=1e-12)


@pytest.mark.filterwarnings("default::ucfl.errors.UcflWarning")
def test_examples_that_see_each_other_never_see_padding_even_in_the_collaboration_round():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            return self.layer(x - x.mean(0) if self.training else x)

    users = make_users([8, 13, 4], shape=(5,))
    training = LocalTraining(batch=4)
    model = Centred().double()
    plain = Federation(users, model, training=training, plain=True)
    with pytest.warns(UcflWarning, match="one after another"):
        fed = Federation(users, model, training=training, chunk=3)
    assert close(fed.train(fed.initial(), 1), plain.train(plain.initial(), 1), atol=1e-12)
    found = [each.collaboration_round(each.initial(), 5).full for each in (fed, plain)]
    assert close(*found, atol=1e-12)
