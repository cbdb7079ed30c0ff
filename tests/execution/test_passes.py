"""What is taken out of a traced step changes nothing but the work."""

import torch
from torch import nn
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from conftest import close
from ucfl.execution import passes, tracing
from ucfl.execution.marks import centred, kept


def test_sums_that_are_known_to_be_zero_are_not_computed():
    """Those of every user's channels; any other sum is, and what is summed stays."""

    def user(x):
        x = centred(x, False)
        return x.sum((0, 2, 3)), x.sum((0, 2, 3), keepdim=True), x.sum((0, 1, 3)), x.sum(0), x * 2

    x = torch.randn(3, 4, 5, 2, 6)
    graph = make_fx(vmap(user), tracing_mode="fake")(x)
    passes.drop_zero_sums(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert "centred" not in graph.code
    zero, zero_as_well, *others = graph(x)
    assert zero.shape == (3, 5)
    assert zero_as_well.shape == (3, 1, 5, 1, 1)
    assert not zero.any()
    assert not zero_as_well.any()
    for mine, reference in zip(others, (x.sum((1, 2, 4)), x.sum(1), x * 2), strict=True):
        assert close(mine, reference)


def test_what_shall_be_kept_is_taken_by_strides_as_it_lies():
    def user(x):
        return kept(2 * x.t()) + 1, kept(x[1:3]) + 1, kept(x[0].expand(4, 5)) + 1

    x = torch.randn(4, 3, 5)
    graph = make_fx(vmap(user, in_dims=1), tracing_mode="fake")(x)
    passes.materialise(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert "kept" not in graph.code
    assert graph.code.count("aten.as_strided") == 3
    expected = vmap(user, in_dims=1)(x)
    assert torch.equal(expected[0], 2 * x.permute(1, 2, 0) + 1)
    for mine, reference in zip(graph(x), expected, strict=True):
        assert torch.equal(mine, reference)


def test_an_arrangement_is_made_once_for_all_that_ask_for_it():
    last = torch.channels_last

    def both_ways(x, y):
        turned = [x.permute(1, 0, 2, 3).clone(memory_format=last) for _ in range(2)]
        return turned[0] * y, turned[1] + y, x.permute(1, 0, 2, 3).clone() - y

    x, y = torch.randn(2, 3, 4, 5), torch.randn(3, 2, 4, 5)
    graph = make_fx(both_ways, tracing_mode="fake")(x, y)
    passes.share_layouts(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert graph.code.count("aten.permute") == 1
    assert graph.code.count("aten.clone") == 2  # of two layouts
    for mine, reference in zip(graph(x, y), both_ways(x, y), strict=True):
        assert torch.equal(mine, reference)


def test_copies_that_are_written_to_are_not_shared():
    def halves(x, state):
        left, right = x.clone(), x.clone()
        left[:, :2] = 0
        right[:, 2:] = 0
        before = x.clone()
        view = x.view(-1)
        view[0] = 7
        state.copy_(left)  # a new state, at the graph's end
        return left * 1, right * 1, before * 1, x.clone() * 1

    x, state = torch.randn(3, 4), torch.zeros(3, 4)
    graph = make_fx(halves, tracing_mode="fake")(x, state)
    passes.share_layouts(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    for mine, reference in zip(graph(x.clone(), state), halves(x.clone(), state), strict=True):
        assert torch.equal(mine, reference)


def test_a_bias_that_normalisation_takes_away_has_no_gradient():
    """What the dropped sums rely on, by PyTorch's own normalisation in double precision."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).double()
    (model(torch.randn(4, 1, 6, 6, dtype=torch.float64)) ** 2).sum().backward()
    assert model[0].bias.grad.abs().max() < 1e-12 < model[0].weight.grad.abs().max()


def test_a_graph_on_a_cpu_has_no_steps_that_do_nothing(monkeypatch):
    monkeypatch.setattr(tracing, "without_gil", lambda graph: graph)
    x = torch.arange(12.0).view(3, 4)
    graph = tracing.trace(lambda x: (2 * x.view(3, 4).t().t().view(12).view(12),), [x])
    assert torch.equal(graph(x + 1)[0], 2 * (x + 1).flatten())
    calls = [node.name for node in graph.graph.nodes if node.op == "call_function"]
    assert len(calls) == 2, calls  # one view, one product


def test_unread_writes_are_dropped_and_no_others():
    def writes(x):
        x.sin().reciprocal_()  # unread
        kept = x.cos()
        kept.mul_(2)
        x.view(-1)[0:1].add_(1)
        x.tan().uniform_()  # a draw, after which all others come
        seen = x.exp()
        seen.view(-1).neg_()
        return kept, x * 1, seen

    x = torch.randn(3)
    graph = make_fx(writes, tracing_mode="fake")(x)
    passes.simplify(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert "sin" not in graph.code
    assert "reciprocal_" not in graph.code
    assert "uniform_" in graph.code
    for mine, reference in zip(graph(x.clone()), writes(x.clone()), strict=True):
        assert torch.equal(mine, reference)


def test_products_with_a_number_are_part_of_the_sum_that_they_enter():
    """The step of SGD, whose rates are tensors; whatever is read twice or written to stays."""

    def step(weights, velocity, gradient, lr, momentum):
        velocity = momentum * velocity + gradient
        return weights - lr * velocity, velocity

    def others(x, y, s):
        twice = s * y
        changed = y * s
        moved = x + changed
        return x + twice, x - twice, moved - x * y, twice - x

    lr, momentum = torch.tensor(0.1), torch.tensor(0.9)
    x, y, z = torch.randn(3, 4, 5)
    for function, given, fused in (
        (step, (x, y, z, lr, momentum), 2),
        (others, (x, y, lr), 1),
    ):
        graph = make_fx(function, tracing_mode="fake")(*given)
        assert passes.fuse_products(graph.graph) == fused
        graph.graph.eliminate_dead_code()
        graph.recompile()
        assert graph.code.count("aten.addcmul") == fused
        for mine, reference in zip(graph(*given), function(*given), strict=True):
            assert close(mine, reference, atol=1e-6)


def test_a_product_is_taken_before_its_factor_is_written_to():
    def late(x, y, s):
        product = s * y
        y.zero_()
        return x + product, y * 1

    x, y, s = torch.randn(3, 4), torch.randn(3, 4), torch.tensor(0.5)
    graph = make_fx(late, tracing_mode="fake")(x, y, s)
    passes.fuse_products(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    for mine, reference in zip(graph(x, y.clone(), s), late(x, y.clone(), s), strict=True):
        assert torch.equal(mine, reference)
