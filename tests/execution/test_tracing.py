"""Traced steps: the same numbers as eager ones, and a way on where tracing fails."""

import dataclasses

import pytest
import torch
from torch import nn

from conftest import DEVICE, close, make_federation, make_users, model_for
from ucfl.algorithms import REGISTRY, find
from ucfl.errors import UcflError
from ucfl.execution import choice, torchscript, tracing
from ucfl.execution.cuda import Recording
from ucfl.execution.tracing import trace
from ucfl.federation import Federation, evaluation


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
    monkeypatch.setattr(choice, "WORTH_TRACING", 0)
    _, traced = trained(users, model, chunk=chunk)
    assert close(traced, eager, atol=1e-12)


def test_traced_accuracy_and_losses_are_eager_ones(monkeypatch):
    users = make_users([20, 9, 16], shape=(1, 16, 16))
    eager, theta = trained(users)
    monkeypatch.setattr(choice, "WORTH_TRACING", 0)
    traced, _ = trained(users)
    assert torch.equal(traced.metric(theta), eager.metric(theta))
    assert close(traced.loss(theta), eager.loss(theta))
    assert close(traced.losses(theta), eager.losses(theta))
    assert close(traced.outputs(theta), eager.outputs(theta))
    found = traced.collaboration_round(theta), eager.collaboration_round(theta)
    assert close(found[0].full, found[1].full)
    assert close(found[0].variances, found[1].variances)


@pytest.mark.parametrize("size", [3, 5, 100])
@pytest.mark.parametrize("path", [{"chunk": 3}, {"chunk": 1}, {"plain": True}], ids=str)
def test_examples_go_through_block_by_block(size, path, traced, monkeypatch):
    """Examples that fill up the last block do not count."""
    fed, theta = trained(make_users([20, 9, 16], shape=(1, 16, 16), held=7), **path)
    whole = fed.losses(theta), fed.loss(theta, "train"), fed.metric(theta), fed.outputs(theta)
    monkeypatch.setattr(evaluation, "BLOCK", size)
    blocks = fed.losses(theta), fed.loss(theta, "train"), fed.metric(theta), fed.outputs(theta)
    for mine, reference in zip(blocks, whole, strict=True):
        assert close(mine, reference, atol=1e-12)


def test_examples_are_filled_up_to_a_length():
    examples = torch.ones(2, 5, 1, 3)
    assert evaluation.longer(examples, 1) is examples
    longer = evaluation.longer(examples, 8)
    assert longer.shape == (2, 8, 1, 3)
    assert torch.equal(longer[:, :5], examples)
    assert not longer[:, 5:].any()
    assert evaluation.longer(torch.ones(2, 5, dtype=torch.bool), 8).sum() == 10


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
    """Whether each graph that was made is run without the GIL."""
    made, original = [], tracing.without_gil

    def without_gil(graph):
        run = original(graph)
        made.append(run is not graph)
        return run

    monkeypatch.setattr(tracing, "without_gil", without_gil)
    return made


@pytest.mark.parametrize("model", ["lenet5", "vgg", "mlp", f"{__name__}:{Layers.__name__}"])
@pytest.mark.parametrize("sizes", [[16, 16], [20, 9]])
def test_graphs_run_without_python_to_the_same_bits(model, sizes, traced, scripted, monkeypatch):
    users = make_users(sizes, shape=(1, 16, 16))

    def numbers():
        fed, theta = trained(users, model, double=False)
        return theta, fed.metric(theta), fed.losses(theta)

    results = numbers()
    assert all(scripted)
    assert scripted or DEVICE != "cpu"  # a GPU's graphs are recorded instead
    monkeypatch.setattr(tracing, "without_gil", lambda graph: graph)
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
    graph = trace(values, [x])
    assert scripted == [True]
    for mine, reference in zip(graph(x), values(x), strict=True):
        assert mine.dtype == reference.dtype
        assert torch.equal(mine, reference)


def test_a_script_is_given_the_graphs_constants(scripted):
    constant = torch.tensor([1.0, 2.0])

    def function(x, y):
        return x * constant + torch.tensor(0.5), y - constant

    given = torch.randn(2), torch.randn(2)
    graph = trace(function, list(given))
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
    graph = trace(function, [x.clone()])
    assert scripted == [False]
    results = []
    for run in (graph, function):
        torch.manual_seed(0)
        results.append(run(x.clone())[0])
    assert results[0].dtype == results[1].dtype
    assert torch.equal(*results)


def test_a_federation_traces_one_graph_for_all_users_and_batches():
    fed = make_federation(make_users([320, 320, 313, 5]))
    theta = fed.train(fed.initial(), 1)
    traces = fed.executor.traces
    assert traces == 2  # the order of the examples, and a step
    for t in range(2, 52):
        training = dataclasses.replace(fed.training, lr=0.05 / t, momentum=0.9 - 0.01 * t)
        theta = fed.train(theta, t, training=training)
    assert fed.executor.traces == traces


def test_a_changing_rate_is_the_rate_that_is_used(traced):
    users = make_users([20, 9, 16])
    stacked, plain = make_federation(users), make_federation(users, plain=True)
    theta = stacked.initial(), plain.initial()
    for t in range(1, 6):
        training = dataclasses.replace(stacked.training, lr=0.1 / t, momentum=0.9 - 0.1 * t)
        theta = tuple(
            fed.train(rows, t, training=training)
            for fed, rows in zip((stacked, plain), theta, strict=True)
        )
    assert close(*theta, atol=1e-12)


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # these users are alike
def test_no_algorithm_traces_anything_after_its_first_rounds(name, traced):
    users = make_users([20, 9, 16, 12], groups=[0, 0, 1, 1], held=6)
    fed = make_federation(users, model_for(name))
    algorithm = find(name)
    state = algorithm.start(fed)
    counts = []
    for t in range(1, 8):
        state = algorithm.round(fed, state, t)
        for split in ("test", "validation"):
            algorithm.metrics(fed, state, split)["accuracy"]
        everyone = [fed, *fed._with_models.values()]
        counts.append(sum(each.executor.traces for each in everyone))
    # adaptive tries its candidates in rounds 3 and 6; FedALA has nothing to learn in round 1
    first = {"adaptive-user-centric": 2, "fedala": 1}.get(name, 0)
    assert set(counts[first:]) == {counts[first]}


def test_a_recording_takes_again_what_has_changed():
    """Without a GPU: what a replay would find in its places."""
    recording = Recording.__new__(Recording)
    recording._inputs, recording._given = [torch.zeros(2)], [(None, 0)]
    recording._carried, recording._outputs = 0, tuple(recording._inputs)
    recording._replay = lambda: None
    x = torch.ones(2)
    assert recording(x)[0].tolist() == [1, 1]
    x.mul_(3)
    assert recording(x)[0].tolist() == [3, 3]
    recording._inputs[0].zero_()  # would be seen if the same were copied once more
    assert recording(x)[0].tolist() == [0, 0]
    assert recording(torch.full((2,), 5.0))[0].tolist() == [5, 5]


def test_without_torchscript_only_speed_is_lost(traced, scripted, monkeypatch):
    users = make_users([20, 9, 16], shape=(1, 16, 16))
    _, with_it = trained(users, double=False)
    made = len(scripted)
    monkeypatch.delattr(torchscript.torch.jit, "CompilationUnit")
    _, without = trained(users, double=False)
    assert not any(scripted[made:])
    assert torch.equal(with_it, without)


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
