"""Convolutions with one weight per user, for all users at once on a GPU.

``vmap`` turns m users' convolutions into one with m groups, and cuDNN runs that as one kernel per
group. Here they are implicit matrix products (:mod:`~ucfl.execution.operations`).
:data:`DECOMPOSITIONS` is what a traced graph takes instead of PyTorch's. How filters are turned and
parts are summed is part of the graph, where PyTorch's compiler can fuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ucfl.execution.operations import MANY, WIDE, Ints


def grouped_convolution(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """Every user's examples [N, U·CI, H, W] with its own filters [U·CO, CI, KH, KW]."""
    x = _stored(x, w.shape[1])
    if w.shape[1] < MANY:
        few: Tensor = torch.ops.ucfl.few_channels(x, w, stride, padding, dilation, groups)
        return few
    taps = w.reshape(groups, -1, *w.shape[1:]).permute(0, 3, 4, 1, 2).contiguous()
    many: Tensor = torch.ops.ucfl.many_channels(x, taps, stride, padding, dilation)
    return many


def input_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to x. Without strides it is a convolution with turned filters."""
    if w.shape[0] < MANY * groups or stride != [1, 1]:
        # That would be many short products: all columns are made first and gathered then.
        size = [*x.shape[2:]]
        rest = size, stride, padding, dilation, groups
        gathered: Tensor = torch.ops.ucfl.gathered_input_gradient(g, w, *rest)
        return gathered
    taps = w.reshape(groups, -1, *w.shape[1:]).flip(3, 4).permute(0, 3, 4, 2, 1).contiguous()
    reach = [dilation[i] * (w.shape[2 + i] - 1) - padding[i] for i in range(2)]
    turned: Tensor = torch.ops.ucfl.many_channels(g, taps, stride, reach, dilation)
    return turned


def weight_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient with respect to every user's filters."""
    kernel, many = [*w.shape[2:]], w.shape[1] >= MANY
    if many and w.shape[0] >= WIDE * groups and g.dtype == torch.float32:
        pixels = torch.ops.ucfl.pixels_together(g, [0, 0], groups)
        images = torch.ops.ucfl.pixels_together(x, padding, groups)
        parts = torch.ops.ucfl.weight_gradient_of_pixels(pixels, images, kernel, stride, dilation)
    else:
        rest = kernel, stride, padding, dilation, groups
        parts = torch.ops.ucfl.weight_gradient(g, x, *rest)
    whole = parts.sum(0)
    if many:  # [U·CO, KH·KW, CI]
        whole = whole.view(len(w), -1, w.shape[1]).transpose(1, 2)
    filters: Tensor = whole.reshape(w.shape).to(w.dtype)
    return filters


def _stored(x: Tensor, channels: int) -> Tensor:
    """x, stored once, as it lies best for so many channels a user; see :data:`MANY`."""
    if channels >= MANY:
        x = x.contiguous(memory_format=torch.channels_last)
    stored: Tensor = torch.ops.ucfl.kept(x)
    return stored


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
    y = grouped_convolution(x, w, stride, padding, dilation, groups)
    return y if bias is None else y + bias[:, None, None]


def _convolution_backward(
    g: Tensor, x: Tensor, w: Tensor, bias_sizes: Ints | None,
    stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int, mask: list[bool],
) -> Any:  # fmt: skip
    if not _suits(x, transposed, groups):
        return NotImplemented
    g, x = _stored(g, w.shape[0] // groups), _stored(x, w.shape[1])
    rest = g, x, w, stride, padding, dilation, groups
    return (
        input_gradient(*rest) if mask[0] else None,
        weight_gradient(*rest) if mask[1] else None,
        g.sum((0, 2, 3)) if mask[2] else None,
    )


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
}
