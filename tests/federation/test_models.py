import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from conftest import close, make_federation, make_users
from ucfl.errors import UcflError
from ucfl.federation import (
    MODELS,
    Federation,
    LocalTraining,
    create,
    initialise,
    reinitialised,
)

#: Those that do not take images: see test_sequences.py.
OF_TOKENS = {"character-lstm", "character-transformer"}


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"cnn1d", *OF_TOKENS}))
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_models_take_images_and_give_one_score_per_class(name, shape):
    model = create(name, shape, 7)
    assert model.eval()(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(6, 100), (1, 16), (3, 17)])
def test_cnn1d_takes_series(shape):
    assert create("cnn1d", shape, 7)(torch.rand(2, *shape)).shape == (2, 7)
    with pytest.raises(UcflError, match=r"cnn1d takes series of .*from 16 samples up"):
        create("cnn1d", (6, 15), 7)
    with pytest.raises(UcflError, match="choose model cnn1d, mlp or logistic"):
        create("lenet5", shape, 7)
    with pytest.raises(UcflError, match="cnn1d takes series"):
        create("cnn1d", (1, 28, 28), 7)


@pytest.mark.usefixtures("traced")
def test_cnn1d_is_trained_for_all_users_at_once_as_for_one_after_the_other():
    users = make_users([20, 8, 13], shape=(6, 20))
    fast, slow = (make_federation(users, "cnn1d", plain=plain) for plain in (False, True))
    theirs = slow.train(slow.initial(), 1)
    assert close(fast.train(fast.initial(), 1), theirs, atol=1e-9)


def test_lenet5_has_the_textbook_size():
    count = sum(p.numel() for p in create("lenet5", (3, 32, 32), 10).parameters())
    assert count == 62_006


def test_same_seed_same_weights_and_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    one, two = (create("vgg", (1, 28, 28), 10, seed=4).state_dict() for _ in range(2))
    assert all(torch.equal(one[key], two[key]) for key in one)
    other = create("vgg", (1, 28, 28), 10, seed=5).state_dict()
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_initialisation_is_he_and_glorot_uniform_with_zero_biases():
    model = nn.Sequential(nn.Conv2d(20, 30, 5), nn.Linear(400, 200))
    initialise(model)
    convolution, linear = model
    for layer, limit in ((convolution, math.sqrt(6 / 500)), (linear, math.sqrt(6 / 600))):
        weights = layer.weight.detach()
        assert weights.abs().max() <= limit
        assert weights.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.03)
        assert not layer.bias.any()


def test_own_factories(tmp_path, monkeypatch):
    (tmp_path / "mymodels.py").write_text(
        "from torch import nn\n"
        "def good(shape, classes):\n"
        "    layer = nn.Linear(shape[0], classes)\n"
        "    nn.init.ones_(layer.weight)\n"
        "    return layer\n"
        "def wrong(shape, classes):\n"
        "    return 3\n"
        "def broken(shape, classes):\n"
        "    raise ValueError('no such luck')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert create("mymodels:good", (4,), 2).weight.eq(1).all()
    assert create("mymodels:good", (4,), 2, initialisation="own").weight.eq(1).all()
    drawn = create("mymodels:good", (4,), 2, initialisation="he-glorot")
    assert not drawn.weight.eq(1).any()
    for name, sentence in (
        ("mymodels:wrong", "not a torch.nn.Module"),
        ("mymodels:broken", "no such luck"),
        ("mymodels:absent", "could not be loaded"),
        ("nomodule:x", "could not be loaded"),
        ("lenet", "did you mean 'lenet5'"),
    ):
        with pytest.raises(UcflError, match=sentence):
            create(name, (4,), 2)


def test_images_that_are_too_small_are_one_sentence():
    with pytest.raises(UcflError, match="choose model mlp or logistic"):
        create("lenet5", (1, 8, 8), 10)


def test_an_initialisation_without_effect_is_refused(tmp_path, monkeypatch):
    (tmp_path / "nolayers.py").write_text(
        "from torch import nn\ndef norm(shape, classes):\n    return nn.LayerNorm(classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert create("nolayers:norm", (2,), 2)
    with pytest.raises(UcflError, match="'he-glorot' has no effect"):
        create("nolayers:norm", (2,), 2, initialisation="he-glorot")


def test_frozen_layers_keep_what_they_hold():
    body, head = nn.Linear(4, 3), nn.Linear(3, 2)
    before = body.weight.detach().clone(), head.weight.detach().clone()
    body.requires_grad_(False)
    initialise(nn.Sequential(body, head))
    assert torch.equal(body.weight, before[0])
    assert not torch.equal(head.weight, before[1])


def test_the_components_of_a_mixture_share_a_frozen_body():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))
    model[1].requires_grad_(False)
    fed = Federation(make_users([8, 8]), model, training=LocalTraining(batch=8))
    rows = torch.stack([reinitialised(fed, k) for k in (1, 2)])
    frozen = fed.part("1").mask
    assert torch.equal(rows[:, frozen], fed.initial()[:, frozen])
    assert not torch.equal(rows[0], rows[1])


class Net(nn.Module):
    def __init__(self, hidden=5, bias=True):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden, bias), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.layers(x)


def make_net():
    return Net(hidden=6)


def make_layer(shape, classes):
    return nn.Linear(shape[0], classes)


def test_a_model_given_as_an_object_is_a_module_its_class_or_what_makes_one():
    mine = Net()
    made = create(mine, (4,), 2)
    assert made is not mine
    assert torch.equal(made.layers[0].weight, mine.layers[0].weight)
    assert create(Net, (4,), 2).layers[0].out_features == 5  # and not Net((4,), 2)
    assert create(make_net, (4,), 2).layers[0].out_features == 6
    assert create(lambda: Net(7), (4,), 2).layers[0].out_features == 7
    assert create(make_layer, (4,), 3).out_features == 3
    assert create(f"{__name__}:make_net", (4,), 2).layers[0].out_features == 6
    assert create(f"{__name__}:Net", (4,), 2).layers[0].out_features == 5
    drawn = [create(Net, (4,), 2, seed=seed).layers[0].weight for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_an_object_that_makes_no_model_is_one_sentence():
    def asks_for_three(shape, classes, depth):
        return None

    for given, sentence in (
        (asks_for_three, r"asks_for_three' could not be made .*missing 3 required"),
        (lambda: 3, "returned int, not a torch.nn.Module"),
        ("own model: Net", "was given by hand"),
    ):
        with pytest.raises(UcflError, match=sentence):
            create(given, (4,), 2)


def test_threads_that_make_models_draw_the_weights_that_each_would_draw_alone():
    """They share PyTorch's generator: without a lock, a seed would mean nothing."""
    alone = [create("mlp", (1, 8, 8), 10, seed) for seed in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            seeds = [seed for _ in range(25) for seed in range(4)]
            made = list(pool.map(lambda seed: create("mlp", (1, 8, 8), 10, seed), seeds))
    finally:
        sys.setswitchinterval(before)
    for seed, model in zip(seeds, made, strict=True):
        for ours, theirs in zip(model.parameters(), alone[seed].parameters(), strict=True):
            assert torch.equal(ours, theirs)
