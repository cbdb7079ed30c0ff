"""All users' convolutions in one kernel, beside PyTorch's; see tests/conftest.py for where it runs.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed
(``make test-kernels``).
"""

import pytest
import torch

pytest.importorskip("triton")

from ucfl.federation import convolution, operations

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: Channels in, height and width, channels out, filter, stride, padding, dilation.
LAYERS = [
    (1, (9, 8), 6, (5, 5), 1, 0, 1),  # LeNet-5's first
    (6, (9, 7), 16, (5, 5), 1, 0, 1),
    (1, (8, 8), 32, (3, 3), 1, 1, 1),  # one channel in, many out
    (32, (6, 5), 64, (3, 3), 1, 1, 1),  # many channels
    (16, (4, 4), 128, (3, 3), 1, 1, 1),  # more filters
    (16, (64, 32), 64, (3, 3), 1, 1, 1),  # whole tiles everywhere
    (33, (5, 5), 40, (3, 3), 1, 1, 1),  # no multiples of anything
    (32, (7, 7), 64, (3, 3), 2, 1, 1),  # strides
    (17, (7, 8), 70, (2, 3), 2, 2, 2),
    (64, (3, 3), 32, (1, 1), 1, 0, 1),  # a product, pixel by pixel
    (3, (9, 9), 32, (3, 2), 2, 2, 2),
    (40, (8, 8), 33, (3, 3), 1, 2, 2),
]
USERS, EXAMPLES = 3, 5  # five are not a whole number of the weight gradient's parts


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_kernels_are_pytorchs_convolutions(layer, layout):
    inputs, size, outputs, kernel, stride, padding, dilation = layer
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, USERS * inputs, *size, generator=generator, dtype=torch.float64)
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


def test_what_is_stored_has_no_gaps():
    x = torch.randn(2, 6, 4, 4, device=DEVICE)
    views = [x, x.permute(1, 0, 3, 2), x[:, ::2], x[..., 1:, 1:], x[:, :1].expand(2, 5, 4, 4)]
    for view in views:
        for channels in (1, 16):
            stored = convolution._stored(view, channels)
            assert torch.equal(stored, view)
            assert convolution._dense(stored)
    assert [convolution._dense(view) for view in views] == [True, True, False, False, False]


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
            (operations.many_channels, (x, taps, *moves)),
            (operations.gathered_input_gradient, (g, w, [6, 6], *moves, USERS)),
            (operations.weight_gradient_parts, (g, x, [3, 3], *moves, USERS)),
            (operations.pixels_together, (x, [2, 1], USERS)),
            (operations.weight_gradient_of_pixels, (*pixels, [3, 3], [1, 1], [1, 1])),
        ):
            torch.library.opcheck(operation, arguments, test_utils="test_faketensor")
