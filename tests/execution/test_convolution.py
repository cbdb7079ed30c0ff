"""All users' convolutions in one kernel, beside PyTorch's; see tests/conftest.py for where it runs.

Without a GPU the kernels run in Triton's interpreter.
"""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton")

from conftest import close, make_federation, make_users
from ucfl.execution import convolution, marks, operations, passes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: Channels in, height and width, channels out, filter, stride, padding, dilation.
LAYERS = [
    (1, (9, 8), 6, (5, 5), 1, 0, 1),  # LeNet-5's first
    (6, (9, 7), 16, (5, 5), 1, 0, 1),
    (1, (8, 8), 32, (3, 3), 1, 1, 1),  # one channel in, many out
    (32, (6, 5), 64, (3, 3), 1, 1, 1),  # many channels
    (16, (4, 4), 128, (3, 3), 1, 1, 1),  # more filters
    (33, (5, 5), 40, (3, 3), 1, 1, 1),  # no multiples of anything
    (32, (7, 7), 64, (3, 3), 2, 1, 1),  # strides
    (17, (7, 8), 70, (2, 3), 2, 2, 2),
    (64, (3, 3), 32, (1, 1), 1, 0, 1),  # a product, pixel by pixel
    (3, (9, 9), 32, (3, 2), 2, 2, 2),
    (40, (8, 8), 33, (3, 3), 1, 2, 2),
]
USERS, EXAMPLES = 3, 5  # five are not a whole number of the weight gradient's parts
#: Whole tiles everywhere, and with eight examples whole parts.
EVEN = (16, (16, 16), 64, (3, 3), 1, 1, 1)


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("layer", "examples"), [*((layer, EXAMPLES) for layer in LAYERS), (EVEN, 8)], ids=str
)
def test_kernels_are_pytorchs_convolutions(layer, examples, layout):
    inputs, size, outputs, kernel, stride, padding, dilation = layer
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, USERS * inputs, *size, generator=generator, dtype=torch.float64)
    w = torch.randn(USERS * outputs, inputs, *kernel, generator=generator, dtype=torch.float64)
    moves = [stride] * 2, [padding] * 2, [dilation] * 2
    y = torch.nn.functional.conv2d(x, w, None, *moves, groups=USERS)
    g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        g, x, w, None, *moves, False, [0, 0], USERS, [True, True, False]
    )
    x, w, g = (t.float().to(DEVICE) for t in (x, w, g))
    x, g = (t.contiguous(memory_format=layout) for t in (x, g))
    ours = (
        convolution.grouped_convolution(x, w, *moves, USERS),
        convolution.input_gradient(g, x, w, *moves, USERS),
        convolution.weight_gradient(g, x, w, *moves, USERS),
    )
    for mine, reference in zip(ours, (y, dx, dw), strict=True):
        assert mine.shape == reference.shape
        error = (mine.cpu().double() - reference).abs().max() / reference.abs().max()
        assert error < 1e-5


def dense(x):
    """Whether x lies in memory without gaps or overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def test_what_is_stored_has_no_gaps():
    x = torch.randn(2, 6, 4, 4, device=DEVICE)
    views = [x, x.permute(1, 0, 3, 2), x[:, ::2], x[..., 1:, 1:], x[:, :1].expand(2, 5, 4, 4)]
    for view in views:
        for channels in (1, 16):
            stored = convolution._stored(view, channels)
            assert torch.equal(stored, view)
            assert dense(stored)
    assert [dense(view) for view in views] == [True, True, False, False, False]


def test_what_is_promised_about_shapes_and_strides_is_kept():
    """The compiler lays out memory by what the fake kernels say."""
    for inputs, outputs in ((1, 6), (32, 64)):
        x = torch.randn(EXAMPLES, USERS * inputs, 6, 6, device=DEVICE)
        w = torch.randn(USERS * outputs, inputs, 3, 3, device=DEVICE)
        g = torch.randn(EXAMPLES, USERS * outputs, 4, 4, device=DEVICE)
        taps = torch.randn(USERS, 3, 3, outputs, inputs, device=DEVICE)
        moves = [1, 1], [0, 0], [1, 1]
        pixels = [operations.pixels_together(t, [0, 0], USERS) for t in (g, x)]
        for operation, arguments in (
            (operations.few_channels, (x, w, *moves, USERS)),
            (operations.few_channels_measured, (x, w, *moves, USERS)),
            (operations.many_channels, (x, taps, *moves)),
            (operations.many_channels_measured, (x, taps, *moves)),
            (operations.gathered_input_gradient, (g, w, [6, 6], *moves, USERS)),
            (operations.weight_gradient_parts, (g, x, [3, 3], *moves, USERS)),
            (operations.weight_gradient_parts_summed, (g, x, [3, 3], *moves, USERS)),
            (operations.pixels_together, (x, [2, 1], USERS)),
            (operations.weight_gradient_of_pixels, (*pixels, [3, 3], [1, 1], [1, 1])),
        ):
            torch.library.opcheck(operation, arguments, test_utils="test_faketensor")


def test_statistics_stay_precise_when_the_first_images_are_unlike_the_rest():
    x = torch.randn(40, USERS, 20, 20, device=DEVICE)
    x[0] += 1000
    w = torch.ones(USERS * 16, 1, 1, 1, device=DEVICE)
    y, *found = operations.few_channels_measured(x, w, [1, 1], [0, 0], [1, 1], USERS)
    expected = torch.var_mean(y.double(), (0, 2, 3), correction=0)
    for mine, reference in zip(found, expected, strict=True):
        assert close(mine.double(), reference, rtol=1e-5)


CHANNELS = [(1, 6), (2, 40), (16, 20), (40, 64)]


@pytest.mark.parametrize(("inputs", "outputs"), CHANNELS)
def test_convolutions_measure_what_comes_out_of_them(inputs, outputs):
    """A constant that is large beside what varies, and tiles that are not full, do not matter."""
    x = torch.randn(EXAMPLES, USERS * inputs, 9, 8, device=DEVICE) + 30
    w = torch.randn(USERS * outputs, inputs, 3, 3, device=DEVICE)
    moves = [1, 1], [0, 0], [1, 1]
    taps = w.reshape(USERS, -1, *w.shape[1:]).permute(0, 3, 4, 1, 2).contiguous()
    for measured, plain, arguments in (
        (operations.few_channels_measured, operations.few_channels, (x, w, *moves, USERS)),
        (operations.many_channels_measured, operations.many_channels, (x, taps, *moves)),
    ):
        y, *found = measured(*arguments)
        assert torch.equal(y, plain(*arguments))
        for mine, reference in zip(
            found, torch.var_mean(y.double(), (0, 2, 3), correction=0), strict=True
        ):
            assert close(mine.double(), reference, rtol=1e-4)


def measured_or_not(after, **options):
    """A convolution and statistics of it, for all users at once, with and without the pass.

    Returns whether it was measured.
    """
    x, w = torch.randn(USERS, EXAMPLES, 2, 7, 22), torch.randn(USERS, 20, 2, 3, 3)
    b, c = torch.randn(USERS, 20), torch.randn(USERS, 5)

    def user(x, w, b, c):
        y = after(nn.functional.conv2d(x, w, b), c)
        return y.sum(), *torch.var_mean(y, **{"dim": (0, 2, 3), "correction": 0, **options})

    given = [t.to(DEVICE) for t in (x, w, b, c)]
    traced = [
        make_fx(vmap(user), convolution.DECOMPOSITIONS, tracing_mode="fake")(*given)
        for _ in range(2)
    ]
    passes.fuse_statistics(traced[1].graph)
    traced[1].graph.eliminate_dead_code()
    traced[1].recompile()
    for mine, reference in zip(traced[1](*given), traced[0](*given), strict=True):
        assert close(mine, reference, atol=1e-4)
    assert ("_measured" in traced[1].code) != ("var_mean" in traced[1].code)
    return "_measured" in traced[1].code


def test_a_normalisation_has_its_convolution_measure():
    assert measured_or_not(lambda y, c: y)


def sliced(y, c):
    y[:, 0] *= 3
    return y


def test_other_statistics_are_left_alone():
    same = {"after": lambda y, c: y}
    for case in (
        {**same, "correction": 1},
        {**same, "dim": (0, 2)},
        {**same, "keepdim": True},
        {"after": lambda y, c: y + c[:, None]},  # per line of the images, not per channel
        {"after": lambda y, c: 2 * y},
        {"after": lambda y, c: y.transpose(1, 2)},
        {"after": lambda y, c: torch.add(y, y, alpha=2)},
        {"after": lambda y, c: y.relu_()},
        {"after": sliced},
    ):
        assert not measured_or_not(**case)


def test_a_bias_goes_where_the_mean_is_taken_away_and_only_there():
    """Images are as wide as they have channels: a mean along columns is something else."""

    def less(shape):
        def user(x, w, b):
            y = nn.functional.conv2d(x, w, b)
            return y - torch.var_mean(y, (0, 2, 3), correction=0)[1].view(shape)

        return vmap(user)

    x, w = torch.randn(USERS, EXAMPLES, 2, 7, 22), torch.randn(USERS, 20, 2, 3, 3)
    given = [t.to(DEVICE) for t in (x, w, torch.randn(USERS, 20))]
    for shape, left in (((1, -1, 1, 1), 0), ((1, 1, 1, -1), 2)):
        graph = make_fx(less(shape), convolution.DECOMPOSITIONS, tracing_mode="fake")(*given)
        expected = graph(*given)
        passes.fuse_statistics(graph.graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        assert close(graph(*given), expected, atol=1e-4)
        added = [node for node in graph.graph.nodes if node.target is torch.ops.aten.add.Tensor]
        assert len(added) == left  # to the images and to their mean


@pytest.mark.parametrize(("inputs", "outputs"), CHANNELS)
def test_weight_gradients_add_up_what_they_read(inputs, outputs):
    x = torch.randn(EXAMPLES, USERS * inputs, 9, 8, device=DEVICE)
    g = torch.randn(EXAMPLES, USERS * outputs, 7, 6, device=DEVICE)
    given = g, x, [3, 3], [1, 1], [0, 0], [1, 1], USERS
    parts, sums = operations.weight_gradient_parts_summed(*given)
    assert close(parts, operations.weight_gradient_parts(*given), atol=1e-4)
    assert close(sums.sum(0), g.sum((0, 2, 3)), atol=1e-4)


def backward(g, x, w):
    """The gradients of a convolution's weights and bias."""
    moves = [1, 1], [0, 0], [1, 1]
    return torch.ops.aten.convolution_backward(
        g, x, w, [len(w)], *moves, False, [0, 0], 1, [False, True, True]
    )[1:]


def added_up_or_not(user):
    """A function of every user's gradients, images and weights, with and without the pass.

    Returns whether a weight gradient added up. Images are as wide as they have channels.
    """
    g, x = torch.randn(USERS, EXAMPLES, 20, 5, 20), torch.randn(USERS, EXAMPLES, 2, 7, 22)
    given = [t.to(DEVICE) for t in (g, x, torch.randn(USERS, 20, 2, 3, 3))]
    graph = make_fx(vmap(user), convolution.DECOMPOSITIONS, tracing_mode="fake")(*given)
    expected = graph(*given)
    passes.materialise(graph.graph)
    passes.fuse_bias_gradients(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    for mine, reference in zip(graph(*given), expected, strict=True):
        assert close(mine, reference, atol=1e-3)
    return "weight_gradient_summed" in graph.code


def test_a_bias_has_its_weights_gradient_add_up():
    assert added_up_or_not(backward)
    assert added_up_or_not(lambda g, x, w: backward(g.relu(), x, w))
    # Outputs of two convolutions that are added: both biases have the sum of the same gradients.
    assert added_up_or_not(lambda g, x, w: (*backward(g, x, w), *backward(g, 2 * x, w)))


def test_other_sums_of_gradients_are_left_alone():
    def weights(g, x, w):
        return backward(g, x, w)[0]

    def written(g, x, w):
        g = g * 1
        total = g.sum((0, 2, 3))
        g.mul_(2)
        return weights(g, x, w), total * 1

    def needed_before(g, x, w):
        total = g.sum((0, 2, 3))
        return weights(g, x * total.sum(), w), total * 1

    def beside(total, change=lambda g: g):
        return lambda g, x, w: (weights(change(g), x, w), total(g) * 1)

    def per_channel(g):
        return g.sum((0, 2, 3))

    assert added_up_or_not(beside(per_channel))
    for case in (
        written,
        needed_before,
        beside(lambda g: g.sum((0, 3))),
        beside(lambda g: g.sum((0, 1, 2))),
        beside(lambda g: g.sum((0, 2, 3), keepdim=True)),
        beside(lambda g: g.sum((0, 2, 3), dtype=torch.float64)),
        beside(lambda g: per_channel(2 * g)),
        beside(per_channel, lambda g: g.transpose(1, 3)),
        beside(per_channel, lambda g: g.flip(0)),
    ):
        assert not added_up_or_not(case)


class Normalised(nn.Module):
    """Layers that graphs for a GPU change, in orders that they must not be mistaken in."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 20, 3, padding=1), nn.Conv2d(20, 18, 3, bias=False)
        self.before, self.after = nn.BatchNorm2d(20), nn.BatchNorm2d(18, affine=False)
        self.last = nn.Linear(18, classes)

    def forward(self, x):
        h = self.first(x)
        h = nn.functional.max_pool2d(self.before(h).relu() + 0.1 * h, 2)
        h = self.after(self.second(h).relu_()).relu()
        return self.last(nn.functional.max_pool2d(h, 2).amax((2, 3)))


@pytest.mark.parametrize("model", ["lenet5", "vgg", f"{__name__}:{Normalised.__name__}"])
@pytest.mark.parametrize("sizes", [[8, 8], [9, 5]])
def test_graphs_for_a_gpu_train_as_eager_steps_do(model, sizes, traced, monkeypatch):
    """Where there is no GPU, they are run on a CPU, with the kernels in Triton's interpreter."""
    side = {"vgg": 8, "lenet5": 16}.get(model, 10)
    users = make_users(sizes, shape=(1, side, side))
    options = {"double": False, "precision": "float32", "batch": 4}
    plain = make_federation(users, model, plain=True, **options)
    theta = plain.train(plain.initial(), 1)
    if DEVICE == "cpu":
        monkeypatch.setattr(marks, "GPU", "cpu")
    fed = make_federation(users, model, **options)
    assert close(fed.train(fed.initial(), 1), theta, atol=1e-5)
