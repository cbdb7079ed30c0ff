"""Traced steps: the same numbers as eager ones, and a way on where tracing fails."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from conftest import DEVICE, close, make_federation, make_users
from ucfl.errors import UcflError, UcflWarning
from ucfl.federation import Federation, LocalTraining, engine, evaluation, graphs
from ucfl.federation.graphs import Graph
from ucfl.users import Users


def trained(users, model="lenet5", rounds=2, **options):
    fed = make_federation(users, model, **options)
    theta = fed.initial()
    for t in range(1, rounds + 1):
        theta = fed.train(theta, t)
    return fed, theta


@pytest.mark.parametrize("model", ["lenet5", "vgg", "mlp", "logistic"])
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_traced_training_is_eager_training(model, chunk, monkeypatch):
    users = make_users([20, 9, 16, 3], shape=(1, 16, 16))
    _, eager = trained(users, model, chunk=chunk)
    monkeypatch.setattr(engine, "WORTH_TRACING", 0)
    _, traced = trained(users, model, chunk=chunk)
    assert close(traced, eager, atol=1e-12)


def test_traced_accuracy_and_losses_are_eager_ones(monkeypatch):
    users = make_users([20, 9, 16], shape=(1, 16, 16))
    eager, theta = trained(users)
    monkeypatch.setattr(engine, "WORTH_TRACING", 0)
    traced, _ = trained(users)
    assert torch.equal(traced.accuracy(theta), eager.accuracy(theta))
    assert close(traced.loss(theta), eager.loss(theta))
    assert close(traced.losses(theta), eager.losses(theta))
    assert close(traced.outputs(theta), eager.outputs(theta))
    found = traced.collaboration_round(theta), eager.collaboration_round(theta)
    assert close(found[0].full, found[1].full)
    assert close(found[0].variances, found[1].variances)


@pytest.mark.parametrize("size", [3, 5, 100])
def test_many_models_at_once_lose_what_each_loses_alone(size, traced, monkeypatch):
    """As a GPU does it; models and examples that fill up the last block do not count."""
    fed, theta = trained(make_users([20, 9, 16], shape=(1, 16, 16)))
    alone = fed.losses(theta)
    monkeypatch.setattr(evaluation, "models_at_once", lambda fed: 2)
    monkeypatch.setattr(evaluation, "AT_ONCE", size)
    assert close(fed.losses(theta), alone, atol=1e-12)


def test_accuracy_and_loss_do_not_see_what_fills_the_examples_up(traced, monkeypatch):
    fed, theta = trained(make_users([20, 9, 16], shape=(1, 16, 16)))
    accuracy, loss = fed.accuracy(theta), fed.loss(theta)
    monkeypatch.setattr(evaluation, "filled_up_to", lambda fed: 32)
    assert torch.equal(fed.accuracy(theta), accuracy)
    assert close(fed.loss(theta), loss, atol=1e-12)


def test_examples_are_filled_up_to_a_length():
    examples = torch.ones(2, 5, 1, 3)
    assert evaluation.longer(examples, 1) is examples
    longer = evaluation.longer(examples, 8)
    assert longer.shape == (2, 8, 1, 3)
    assert torch.equal(longer[:, :5], examples)
    assert not longer[:, 5:].any()
    assert evaluation.longer(torch.ones(2, 5, dtype=torch.bool), 8).sum() == 10


@pytest.mark.parametrize("sizes", [[20, 9, 16], [16, 16, 16]])
def test_steps_that_cut_their_own_batches_are_the_same_steps(traced, sizes):
    """What a GPU runs as one graph per step; here on whatever device the tests have."""
    users = make_users(sizes, shape=(1, 16, 16))
    cut = make_federation(users, "lenet5")
    given = make_federation(users, "lenet5")
    cut.whole_steps, given.whole_steps = True, False
    theta = cut.initial(), given.initial()
    other = LocalTraining(lr=0.03, momentum=0.5, batch=5, epochs=2)
    for t, training in ((1, None), (2, None), (3, other)):
        theta = tuple(
            fed.train(rows, t, training=training)
            for fed, rows in zip((cut, given), theta, strict=True)
        )
    assert close(*theta, atol=1e-12)


def test_threads_change_no_bit(traced):
    """Users are shared out to threads with one core each: two threads, one, any order."""
    users = make_users([40, 24, 16, 33, 8], shape=(1, 16, 16))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(trained(users, double=False, chunk=1)[1])
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[1], results[2])
    if threads > 1:
        assert close(results[0], results[1], atol=1e-5)


class Layers(nn.Module):
    """Of many kinds: what padding and draws ask for, norms, strides, a skip."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding=1)
        self.one, self.other = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.last = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 9, classes))

    def forward(self, x):
        h = nn.functional.gelu(self.one(self.first(x)))
        h = h + self.other(self.second(h)).tanh()
        return self.last(nn.functional.max_pool2d(h, 2))


@pytest.fixture
def scripted(monkeypatch):
    """Whether each graph that was made is run without Python."""
    made, original = [], graphs.without_python

    def without_python(graph):
        run = original(graph)
        made.append(run is not graph)
        return run

    monkeypatch.setattr(graphs, "without_python", without_python)
    return made


@pytest.mark.parametrize("model", ["lenet5", "vgg", "mlp", f"{__name__}:{Layers.__name__}"])
@pytest.mark.parametrize("sizes", [[16, 16], [20, 9]])
def test_graphs_run_without_python_to_the_same_bits(model, sizes, traced, scripted, monkeypatch):
    users = make_users(sizes, shape=(1, 16, 16))

    def numbers():
        fed, theta = trained(users, model, double=False)
        return theta, fed.accuracy(theta), fed.losses(theta)

    results = numbers()
    assert all(scripted)
    assert scripted or DEVICE != "cpu"  # a GPU's graphs are recorded instead
    monkeypatch.setattr(graphs, "without_python", lambda graph: graph)
    for mine, reference in zip(results, numbers(), strict=True):
        assert torch.equal(mine, reference)


def test_a_script_says_every_kind_of_value(scripted):
    def values(x):
        lowest, highest = x.new_full((2,), float("-inf")), x.new_full((2,), float("inf"))
        index = torch.arange(2, device=x.device, dtype=torch.int16)
        split, _ = x.split([2, 1])
        nothing = torch.full_like(x, float("nan"), memory_format=torch.contiguous_format)
        return lowest, highest, index, split.sum(0, keepdim=True) * 1e-30, nothing.isnan()

    x = torch.randn(3, 4)
    graph = Graph(values, (x,))
    assert scripted == [True]
    for mine, reference in zip(graph(x), values(x), strict=True):
        assert mine.dtype == reference.dtype
        assert torch.equal(mine, reference)


def test_a_script_is_given_the_graphs_constants(scripted):
    constant = torch.tensor([1.0, 2.0])

    def function(x, y):
        return x * constant + torch.tensor(0.5), y - constant

    given = torch.randn(2), torch.randn(2)
    graph = Graph(function, given)
    assert scripted == [True]
    for mine, reference in zip(graph(*given), function(*given), strict=True):
        assert torch.equal(mine, reference)


def added_in_place(x):
    torch._foreach_add_([x[0], x[1]], 1.0)
    return (x * 1,)


def drawn_for_nothing(x):
    torch.rand(3)
    return (torch.rand(3) + x,)


UNFAITHFUL = {
    "a number that is bool": lambda x: (torch.full((3, 3), True).triu(1),),
    "and": lambda x: (torch.where((x > 0) & True, x, 0 * x),),
    "times": lambda x: ((x > 0) * True,),
    "bits": lambda x: (x.view(torch.int32),),
    "a number first": lambda x: (torch.div(1.7, x),),
    "a number first, wrapping": lambda x: (torch.sub(1.5, x.to(torch.uint8)),),
    "a number first, short": lambda x: (torch.mul(0.3, x.bfloat16()),),
    "in place, short": lambda x: (x.bfloat16().mul_(0.3),),
    "nothing returned": added_in_place,
    "nothing used": drawn_for_nothing,
}


@pytest.mark.parametrize("function", UNFAITHFUL.values(), ids=UNFAITHFUL.keys())
def test_what_a_script_would_do_otherwise_is_run_in_python(function, scripted):
    x = torch.tensor([1.3, 2.7, -3.1])
    graph = Graph(function, (x.clone(),))
    assert scripted == [False]
    results = []
    for run in (graph, function):
        torch.manual_seed(0)
        results.append(run(x.clone())[0])
    assert results[0].dtype == results[1].dtype
    assert torch.equal(*results)


def test_large_federations_are_traced_and_small_ones_are_not():
    small, large = (make_federation(make_users([8 * n, 8 * n])) for n in (2, 40))
    for fed in (small, large):
        fed.train(fed.initial(), 1)
    assert not small._graphs
    steps = [kind for kind, _ in large._graphs if kind[0] == "step"]
    assert len(steps) == 1  # for all chunks and batches


def test_a_recorded_graph_takes_again_what_has_changed():
    """Without a GPU: what a replay would find in its places."""
    graph = Graph(lambda x: (x,), (torch.zeros(2),))
    graph._inputs, graph._given, graph._carried = [torch.zeros(2)], [(None, 0)], 0
    graph._outputs, graph._replay = tuple(graph._inputs), lambda: None
    x = torch.ones(2)
    assert graph(x)[0].tolist() == [1, 1]
    x.mul_(3)
    assert graph(x)[0].tolist() == [3, 3]
    graph._inputs[0].zero_()  # would be seen if the same were copied once more
    assert graph(x)[0].tolist() == [0, 0]
    assert graph(torch.full((2,), 5.0))[0].tolist() == [5, 5]


class Moody(nn.Module):
    """A model that asks its data what to do, which a trace cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 1e9 else self.layer(-x)


def test_a_model_that_cannot_be_traced_is_trained_all_the_same(traced):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(8, 4)), rng.integers(0, 2, 8))]
    users = Users.from_arrays(pairs, pairs, pairs, classes=2)
    training = LocalTraining(batch=4)
    fed = Federation(users, Moody(), training=training)
    with pytest.warns(UcflWarning, match="cannot be traced"):
        theta = fed.train(fed.initial(), 1)
    plain = Federation(users, fed.module(fed.initial()[0]), training=training, plain=True)
    assert close(plain.train(plain.initial(), 1), theta)


def test_a_graph_carries_its_state_and_skips_what_is_none():
    def step(total, extra, value):
        return total + value if extra is None else total + value + extra, value * 2

    graph = Graph(step, (torch.zeros(3), None, torch.ones(3)), carried=1)
    state = torch.zeros(3)
    for _ in range(4):
        state, twice = graph(state, None, torch.ones(3))
    assert state.tolist() == [4, 4, 4]
    assert twice.tolist() == [2, 2, 2]


class Branches(nn.Module):
    """A branch per colour and a crop: convolutions of parts of images, with gaps in memory."""

    def __init__(self):
        super().__init__()
        self.red, self.blue = nn.Conv2d(1, 3, 3), nn.Conv2d(1, 3, 3)
        self.both = nn.Conv2d(6, 4, 3)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        h = torch.cat([self.red(x[:, :1]), self.blue(x[:, 2:])], 1).relu()
        return self.last(self.both(h[..., 1:, 1:]).amax((2, 3)))


@pytest.mark.long
@pytest.mark.parametrize("model", ["lenet5", "branches"])
def test_compiled_training_is_eager_training(model, traced):
    users = make_users([20, 9, 16, 3], shape=(3, 16, 16))
    fed = make_federation(users, "lenet5", double=False)
    torch.manual_seed(0)
    module = Branches() if model == "branches" else fed.module(fed.initial()[0])
    options = {"training": fed.training, "device": fed.device, "precision": "float32"}
    plain = Federation(users, module, plain=True, **options)
    compiled = Federation(users, module, compiled=True, **options)
    theta = plain.train(plain.initial(), 1)
    assert close(compiled.train(compiled.initial(), 1), theta, atol=1e-5)


@pytest.mark.long
def test_a_compiled_graph_is_not_run_while_another_thread_traces():
    """PyTorch would raise; chunks are shared out to threads, and any may meet a new shape."""
    x = torch.arange(4.0)
    double = Graph(lambda x: (2 * x,), (x,), compiled=True)
    found, waited = [], []
    thread = threading.Thread(target=lambda: found.extend(double(torch.arange(4.0))))

    def traced(x):
        thread.start()
        thread.join(0.5)  # as long as it takes to go wrong
        waited.append(thread.is_alive())
        return (x + 1,)

    Graph(traced, (x,))
    thread.join()
    assert waited == [True]
    assert torch.equal(found[0], 2 * x)


@pytest.mark.parametrize("model", ["lenet5", "vgg"])
def test_bfloat16_learns_the_same_to_its_precision(model, traced):
    users = make_users([20, 9, 16], shape=(1, 16, 16))
    exact, theta = trained(users, model, double=False)
    coarse, low = trained(users, model, double=False, precision="bfloat16")
    assert low.dtype == torch.float32
    assert not torch.equal(low, theta)
    moved, apart = (theta - exact.initial()).norm(), (low - theta).norm()
    assert apart < 0.2 * moved
    assert coarse.loss(low).dtype == torch.float32


def test_an_unknown_precision_is_refused():
    with pytest.raises(UcflError, match="tf32"):
        make_federation(make_users([8]), precision="half")
