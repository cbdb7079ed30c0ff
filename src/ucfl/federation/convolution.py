"""Convolutions with one weight per user, as one GPU kernel for all users.

``vmap`` turns m users' convolutions into one with m groups, and cuDNN runs that as one kernel per
group. Here they are implicit matrix products (:mod:`~ucfl.federation.kernels`).
:data:`DECOMPOSITIONS` is what a traced graph takes instead of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import custom_op

from ucfl.federation import kernels

Ints = list[int]


class _Sizes:
    """The sizes of one grouped convolution, by the letters that the kernels use."""

    def __init__(
        self, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
    ) -> None:
        self.N, _, self.H, self.W = x.shape
        _, self.CI, self.KH, self.KW = w.shape
        self.U, self.CO, self.K = groups, w.shape[0] // groups, self.CI * self.KH * self.KW
        self.OH, self.OW = (
            (size + 2 * padding[i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1
            for i, size in enumerate((self.H, self.W))
        )
        self.moves = (*stride, *padding, *dilation)
        self.constants = (
            *(self.CI, self.H, self.W, self.CO, self.KH, self.KW, self.OH, self.OW),
            *self.moves,
        )


def _strides(t: Tensor, groups: int) -> tuple[int, ...]:
    """Of [N, U, C, H, W], given [N, U·C, H, W]."""
    n, c, h, w = t.stride()
    return n, c * (t.shape[1] // groups), c, h, w


def _block(size: int, most: int = 128) -> int:
    """A power of two for ``tl.dot``, which takes 16 at least."""
    return max(16, min(most, int(triton.next_power_of_2(size))))


def _precision() -> str:
    """TF32 where PyTorch may use it for convolutions; else three TF32 products, near float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


#: Channels a user from which on they lie side by side in memory (PyTorch's channels_last, all
#: users' channels together), and a tap's product is long enough to be worth a step of its own.
#: (Who changes it must empty the compiler's cache: PyTorch does not see that layouts change.)
MANY = 16


def _empty(like: Tensor, n: int, groups: int, channels: int, height: int, width: int) -> Tensor:
    """[N, U·C, H, W]; see :data:`MANY`."""
    layout = torch.channels_last if channels >= MANY else torch.contiguous_format
    return torch.empty(
        (n, groups * channels, height, width),
        dtype=like.dtype,
        device=like.device,
        memory_format=layout,
    )


def _by_taps(x: Tensor, taps: Tensor, y: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Fill y with :func:`kernels.many_channels`; ``taps`` is [U, KH·KW, CO, CI]."""
    groups, _, outputs, inputs = taps.shape
    x = x.contiguous(memory_format=torch.channels_last)
    bc, bp, bk = _block(outputs), 128, _block(inputs, 32)
    grid = (groups * triton.cdiv(y[:, 0].numel(), bp), triton.cdiv(outputs, bc))
    kernels.many_channels[grid](
        x, taps, y, len(x), groups, *_strides(x, groups), *_strides(y, groups), *sizes,
        bc, bp, bk, _precision(), 3, num_warps=8 if bc >= 64 else 4,
    )  # fmt: skip
    return y


# Block sizes were the fastest of small searches on an H200, for LeNet-5's and VGG's layers.


@custom_op("ucfl::grouped_convolution", mutates_args=())
def grouped_convolution(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """Every user's examples with its own filters."""
    s = _Sizes(x, w, stride, padding, dilation, groups)
    y = _empty(x, s.N, s.U, s.CO, s.OH, s.OW)
    if s.CI >= MANY:
        taps = w.reshape(s.U, s.CO, s.CI, s.KH * s.KW).permute(0, 3, 1, 2).contiguous()
        return _by_taps(x, taps, y, s.constants)
    bc, bp, bk = _block(s.CO), 128 if s.K <= 16 else 64, _block(s.K, 32)
    grid = (s.U * triton.cdiv(s.N * s.OH * s.OW, bp), triton.cdiv(s.CO, bc))
    kernels.few_channels[grid](
        x, w.contiguous(), y, s.N, s.U, *_strides(x, s.U), *_strides(y, s.U), *s.constants,
        bc, bp, bk, _precision(), num_warps=2,
    )  # fmt: skip
    return y


@grouped_convolution.register_fake
def _(x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Tensor:
    s = _Sizes(x, w, stride, padding, dilation, groups)
    return _empty(x, s.N, s.U, s.CO, s.OH, s.OW)


@custom_op("ucfl::grouped_convolution_input_gradient", mutates_args=())
def grouped_convolution_input_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to the inputs.

    Without strides it is a convolution of g with the filters turned round. With few filters or
    strides, that would be many short products: all columns are made first and gathered then.
    """
    s = _Sizes(x, w, stride, padding, dilation, groups)
    dx = _empty(g, s.N, s.U, s.CI, s.H, s.W)
    if s.CO >= MANY and s.CI >= MANY and stride == [1, 1]:
        taps = w.reshape(s.U, s.CO, s.CI, s.KH * s.KW).flip(3).permute(0, 3, 2, 1).contiguous()
        reach = [dilation[i] * (w.shape[2 + i] - 1) - padding[i] for i in range(2)]
        sizes = (s.CO, s.OH, s.OW, s.CI, s.KH, s.KW, s.H, s.W, 1, 1, *reach, *dilation)
        return _by_taps(g, taps, dx, sizes)
    columns = g.new_empty(s.N, s.U, s.K, s.OH * s.OW, dtype=torch.float32)
    bp, bk, each = 64, 64, 4
    tiles = triton.cdiv(s.OH * s.OW, bp) * triton.cdiv(s.N, each)
    kernels.columns[s.U * tiles, triton.cdiv(s.K, bk)](
        g, w.contiguous(), columns, s.N, s.U, each, *_strides(g, s.U), s.K, s.CO, s.OH, s.OW,
        bk, bp, _block(s.CO, 32), _precision(), num_warps=2,
    )  # fmt: skip
    kernels.gather_columns[(triton.cdiv(dx.numel(), 2048),)](
        columns, dx, dx.numel(), s.U, *_strides(dx, s.U), s.CI,
        s.H, s.W, s.KH, s.KW, s.OH, s.OW, *s.moves, 2048, num_warps=8,
    )  # fmt: skip
    return dx


@grouped_convolution_input_gradient.register_fake
def _(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    s = _Sizes(x, w, stride, padding, dilation, groups)
    return _empty(g, s.N, s.U, s.CI, s.H, s.W)


@custom_op("ucfl::grouped_convolution_weight_gradient", mutates_args=())
def grouped_convolution_weight_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to every user's filters."""
    s = _Sizes(x, w, stride, padding, dilation, groups)
    many = s.CI >= MANY
    if many:
        x = x.contiguous(memory_format=torch.channels_last)
        bc, bk = _block(s.CO, 32), _block(s.K, 128 if s.CO > 16 else 64)
        bp, each, warps, stages = 32, 16, 4, 3
    elif s.CO >= MANY:
        bc, bk, bp, each, warps, stages = _block(s.CO), _block(s.K, 32), 64, 4, 2, 1
    else:
        bc, bk, bp, each, warps, stages = _block(s.CO), _block(s.K, 32), 32, 4, 2, 3
    parts = triton.cdiv(s.N, each)
    dw = g.new_empty(parts, s.U * s.CO, s.K, dtype=torch.float32)
    grid = (s.U * parts, triton.cdiv(s.K, bk), triton.cdiv(s.CO, bc))
    kernels.weight_gradient[grid](
        g, x, dw, s.N, s.U, *_strides(g, s.U), *_strides(x, s.U), *s.constants, each,
        bc, bk, bp, many, _precision(), stages, num_warps=warps,
    )  # fmt: skip
    whole = dw.sum(0).to(g.dtype)
    if many:
        whole = whole.view(-1, s.KH * s.KW, s.CI).transpose(1, 2).contiguous()
    return whole.view(w.shape)


@grouped_convolution_weight_gradient.register_fake
def _(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return g.new_empty(w.shape)


def _suits(x: Tensor, transposed: bool, groups: int) -> bool:
    known = x.dtype in (torch.float32, torch.bfloat16)
    return groups > 1 and not transposed and x.dim() == 4 and known


def _convolution(
    x: Tensor, w: Tensor, bias: Tensor | None,
    stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Any:  # fmt: skip
    if not _suits(x, transposed, groups):
        return NotImplemented
    y = torch.ops.ucfl.grouped_convolution(x, w, stride, padding, dilation, groups)
    return y if bias is None else y + bias[:, None, None]


def _convolution_backward(
    g: Tensor, x: Tensor, w: Tensor, bias_sizes: Ints | None,
    stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int, mask: list[bool],
) -> Any:  # fmt: skip
    if not _suits(x, transposed, groups):
        return NotImplemented
    rest = g, x, w, stride, padding, dilation, groups
    return (
        torch.ops.ucfl.grouped_convolution_input_gradient(*rest) if mask[0] else None,
        torch.ops.ucfl.grouped_convolution_weight_gradient(*rest) if mask[1] else None,
        g.sum((0, 2, 3)) if mask[2] else None,
    )


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
}
