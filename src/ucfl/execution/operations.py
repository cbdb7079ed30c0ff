"""Operations of a traced graph that start our GPU kernels (:mod:`~ucfl.execution.kernels`).

Each allocates what comes out and starts its kernels. What it returns is told to PyTorch by the
function after it, for tracing. Block sizes were the fastest of small searches on an H200, for
LeNet-5's and VGG's layers.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.library import custom_op

from ucfl.execution import kernels

Ints = list[int]

#: Channels a user from which on they lie side by side in memory (PyTorch's channels_last, all
#: users' channels together), and a tap's product is long enough to be worth a step of its own.
#: (Who changes it must empty the compiler's cache: PyTorch does not see that layouts change.)
MANY = 16

#: Filters a user from which on weight gradients are worth a copy with pixels side by side: the
#: tensor cores' widest products take 64 rows, and in TF32 only what lies in the order of the sum.
WIDE = 64


@custom_op("ucfl::few_channels", mutates_args=())
def few_channels(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """A convolution with few channels in: :func:`kernels.few_channels` or `few_taps`."""
    return _few_channels(x, w, stride, padding, dilation, groups, measured=False)[0]


@custom_op("ucfl::few_channels_measured", mutates_args=())
def few_channels_measured(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`few_channels`, and the variance and mean of each channel that comes out."""
    y, var, mean = _few_channels(x, w, stride, padding, dilation, groups, measured=True)
    return y, var, mean


def _few_channels(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int, measured: bool
) -> tuple[Tensor, ...]:
    (n, _, h, w_), (filters, ci, kh, kw) = x.shape, w.shape
    y = _few_channels_out(x, w, stride, padding, dilation, groups)
    co, k, (oh, ow) = filters // groups, ci * kh * kw, y.shape[2:]
    few_taps = k <= (16 if co > 8 else 32)
    if few_taps:
        bc = _block(co, 32, least=8)
        bp, warps = (32, 1) if measured else (128, 4) if bc > 8 else (256, 2)
    else:
        bc, bp, warps = _block(co), 64, 2
    parts = _parts(y, bp) if measured else y
    places = x, w.contiguous(), y, parts, n, groups, *_strides(x, groups), *_strides(y, groups)
    sizes = ci, h, w_, co, kh, kw, oh, ow, *stride, *padding, *dilation
    grid = (groups * triton.cdiv(n * oh * ow, bp), triton.cdiv(co, bc))
    if few_taps:
        kernels.few_taps[grid](*places, *sizes, bc, bp, measured, num_warps=warps)
    else:
        rest = bc, bp, _block(k, 32), _precision(), measured
        kernels.few_channels[grid](*places, *sizes, *rest, num_warps=warps)
    return (y, *_combined(parts, y, bp)) if measured else (y,)


def _few_channels_out(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    size = _size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    return _empty(x, groups, w.shape[0] // groups, *size)


few_channels.register_fake(_few_channels_out)
few_channels_measured.register_fake(lambda *given: _measured_out(_few_channels_out(*given)))


@custom_op("ucfl::many_channels", mutates_args=())
def many_channels(x: Tensor, taps: Tensor, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    """A convolution with taps [U, KH, KW, CO, CI], by :func:`kernels.many_channels`."""
    return _many_channels(x, taps, stride, padding, dilation, measured=False)[0]


@custom_op("ucfl::many_channels_measured", mutates_args=())
def many_channels_measured(
    x: Tensor, taps: Tensor, stride: Ints, padding: Ints, dilation: Ints
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`many_channels`, and the variance and mean of each channel that comes out."""
    y, var, mean = _many_channels(x, taps, stride, padding, dilation, measured=True)
    return y, var, mean


def _many_channels(
    x: Tensor, taps: Tensor, stride: Ints, padding: Ints, dilation: Ints, measured: bool
) -> tuple[Tensor, ...]:
    groups, kh, kw, co, ci = taps.shape
    y = _many_channels_out(x, taps, stride, padding, dilation)
    bc, bp, bk = _block(co), 128, _block(ci, 32)
    parts = _parts(y, bp) if measured else y
    grid = (groups * triton.cdiv(y[:, 0].numel(), bp), triton.cdiv(co, bc))
    kernels.many_channels[grid](
        x, taps, y, parts, len(x), groups, *_strides(x, groups), *_strides(y, groups),
        ci, *x.shape[2:], co, kh, kw, *y.shape[2:], *stride, *padding, *dilation,
        bc, bp, bk, _precision(), measured, 3, num_warps=4,
    )  # fmt: skip
    return (y, *_combined(parts, y, bp)) if measured else (y,)


def _many_channels_out(
    x: Tensor, taps: Tensor, stride: Ints, padding: Ints, dilation: Ints
) -> Tensor:
    groups, kh, kw, co, _ = taps.shape
    return _empty(x, groups, co, *_size(x.shape[2:], (kh, kw), stride, padding, dilation))


many_channels.register_fake(_many_channels_out)
many_channels_measured.register_fake(lambda *given: _measured_out(_many_channels_out(*given)))


def _parts(y: Tensor, each: int) -> Tensor:
    """Places for the statistics of every channel's tiles of pixels."""
    tiles = triton.cdiv(y[:, 0].numel(), each)
    return y.new_empty(tiles, y.shape[1], 2, dtype=torch.float32)


def _combined(parts: Tensor, y: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Variances and means of y's channels, by :func:`kernels.combined_statistics`."""
    (tiles, channels, _), pixels = parts.shape, y[:, 0].numel()
    _, var, mean = _measured_out(y)
    bt, bc = 128, 16
    kernels.combined_statistics[(triton.cdiv(channels, bc),)](
        parts, var, mean, tiles, channels, pixels, each, bt, bc, num_warps=4
    )
    return var, mean


def _measured_out(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    var = y.new_empty(y.shape[1], dtype=torch.float32)
    return y, var, torch.empty_like(var)


@custom_op("ucfl::gathered_input_gradient", mutates_args=())
def gathered_input_gradient(
    g: Tensor, w: Tensor, size: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to inputs of a size: all columns, then sums of them."""
    (n, _, oh, ow), (filters, ci, kh, kw) = g.shape, w.shape
    co, k = filters // groups, ci * kh * kw
    columns = g.new_empty(n, groups, k, oh * ow, dtype=torch.float32)
    bp, bk, each = 64, 64, 4
    tiles = triton.cdiv(oh * ow, bp) * triton.cdiv(n, each)
    kernels.columns[groups * tiles, triton.cdiv(k, bk)](
        g, w.contiguous(), columns, n, groups, each, *_strides(g, groups), k, co, oh, ow,
        bk, bp, _block(co, 32), _precision(), num_warps=2,
    )  # fmt: skip
    dx = _empty(g, groups, ci, *size)
    kernels.gather_columns[(triton.cdiv(dx.numel(), 512),)](
        columns, dx, dx.numel(), groups, *_strides(dx, groups), ci,
        *size, kh, kw, oh, ow, *stride, *padding, *dilation, 512, num_warps=4,
    )  # fmt: skip
    return dx


@gathered_input_gradient.register_fake
def _(
    g: Tensor, w: Tensor, size: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return _empty(g, groups, w.shape[1], *size)


@custom_op("ucfl::weight_gradient", mutates_args=())
def weight_gradient_parts(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """Parts of filters' gradients, to be summed, by :func:`kernels.weight_gradient`."""
    return _weight_gradient(g, x, kernel, stride, padding, dilation, groups, summed=False)[0]


@custom_op("ucfl::weight_gradient_summed", mutates_args=())
def weight_gradient_parts_summed(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> tuple[Tensor, Tensor]:
    """:func:`weight_gradient_parts`, and parts of each channel's sum of g."""
    dw, sums = _weight_gradient(g, x, kernel, stride, padding, dilation, groups, summed=True)
    return dw, sums


def _weight_gradient(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int,
    summed: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    (n, filters, oh, ow), (_, channels, h, w) = g.shape, x.shape
    co, ci = filters // groups, channels // groups
    k, many = ci * kernel[0] * kernel[1], ci >= MANY
    if many:
        bc, bk = _block(co, 32), _block(k, 128 if co > 16 else 64)
        bp, warps, stages = 32, 4, 3
    else:
        bc, bk = _block(co), _block(k, 32)
        of_many = (32, 2, 3) if summed else (32, 1, 1)
        bp, warps, stages = of_many if co >= MANY else (64, 1, 1)
    dw = _weight_gradient_out(g, x, kernel, stride, padding, dilation, groups)
    _, sums = _summed_out(dw) if summed else (dw, dw)
    grid = (groups * len(dw), triton.cdiv(k, bk), triton.cdiv(co, bc))
    kernels.weight_gradient[grid](
        g, x, dw, sums, n, groups, *_strides(g, groups), *_strides(x, groups),
        ci, h, w, co, *kernel, oh, ow, *stride, *padding, *dilation, _images(ci),
        bc, bk, bp, many, _precision(), summed, stages, num_warps=warps,
    )  # fmt: skip
    return (dw, sums) if summed else (dw,)


def _images(channels: int) -> int:
    """How many images are summed in one part."""
    return 16 if channels >= MANY else 4


def _weight_gradient_out(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    (n, filters), ci = g.shape[:2], x.shape[1] // groups
    parts = -(-n // _images(ci))
    return g.new_empty(parts, filters, ci * kernel[0] * kernel[1], dtype=torch.float32)


def _summed_out(dw: Tensor) -> tuple[Tensor, Tensor]:
    return dw, dw.new_empty(dw.shape[:2])


weight_gradient_parts.register_fake(_weight_gradient_out)
weight_gradient_parts_summed.register_fake(lambda *given: _summed_out(_weight_gradient_out(*given)))


@custom_op("ucfl::pixels_together", mutates_args=())
def pixels_together(t: Tensor, padding: Ints, groups: int) -> Tensor:
    """[U, C, N, H, W] with zeros around, by :func:`kernels.pixels_together`."""
    (n, _, h, w), c = t.shape, t.shape[1] // groups
    out = _pixels_together_out(t, padding, groups)
    bc, bp = _block(c, 64), 64
    grid = (groups * triton.cdiv(out[0, 0].numel(), bp), triton.cdiv(c, bc))
    kernels.pixels_together[grid](
        t, out, n, groups, *_strides(t, groups), c, h, w, *padding, bc, bp, num_warps=4
    )
    return out


def _pixels_together_out(t: Tensor, padding: Ints, groups: int) -> Tensor:
    n, channels, h, w = t.shape
    return t.new_empty(groups, channels // groups, n, h + 2 * padding[0], w + 2 * padding[1])


pixels_together.register_fake(_pixels_together_out)


@custom_op("ucfl::weight_gradient_of_pixels", mutates_args=())
def weight_gradient_of_pixels(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, dilation: Ints
) -> Tensor:
    """Parts of filters' gradients, by :func:`kernels.weight_gradient_of_pixels`."""
    (groups, co, n, oh, ow), (_, ci, _, h, w) = g.shape, x.shape
    dw = _of_pixels_out(g, x, kernel, stride, dilation)
    bc, bk, bp, each = _block(max(co, WIDE)), 128, 64, _enough_images(oh * ow)
    even = co % bc == 0 and n % each == 0 and each * oh * ow % bp == 0
    grid = (groups * len(dw), triton.cdiv(ci * kernel[0] * kernel[1], bk), triton.cdiv(co, bc))
    kernels.weight_gradient_of_pixels[grid](
        g, x, dw, n, groups, ci, h, w, co, *kernel, oh, ow, *stride, *dilation,
        each, bc, bk, bp, even, _precision(), 2 if bc == WIDE else 3,
        num_warps=4 if bc == WIDE else 8,
    )  # fmt: skip
    return dw


def _enough_images(pixels: int) -> int:
    """How many images have some 2,000 pixels together."""
    return int(triton.next_power_of_2(-(-2048 // pixels)))


def _of_pixels_out(g: Tensor, x: Tensor, kernel: Ints, stride: Ints, dilation: Ints) -> Tensor:
    (groups, co, n, oh, ow), ci = g.shape, x.shape[1]
    parts = -(-n // _enough_images(oh * ow))
    return g.new_empty(parts, groups * co, kernel[0] * kernel[1] * ci, dtype=torch.float32)


weight_gradient_of_pixels.register_fake(_of_pixels_out)


def _size(
    image: tuple[int, ...], kernel: tuple[int, ...], stride: Ints, padding: Ints, dilation: Ints
) -> Ints:
    """Height and width of what comes out."""
    return [
        (image[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]


def _empty(like: Tensor, groups: int, channels: int, height: int, width: int) -> Tensor:
    """[N, U·C, H, W]; see :data:`MANY`."""
    return torch.empty(
        (len(like), groups * channels, height, width),
        dtype=like.dtype,
        device=like.device,
        memory_format=torch.channels_last if channels >= MANY else torch.contiguous_format,
    )


def _strides(t: Tensor, groups: int) -> tuple[int, ...]:
    """Of [N, U, C, H, W], given [N, U·C, H, W]."""
    n, c, h, w = t.stride()
    return n, c * (t.shape[1] // groups), c, h, w


def _block(size: int, most: int = 128, least: int = 16) -> int:
    """A power of two; ``tl.dot`` takes 16 at least."""
    return max(least, min(most, int(triton.next_power_of_2(size))))


def _precision() -> str:
    """TF32 where PyTorch may use it for convolutions; else three TF32 products, near float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
