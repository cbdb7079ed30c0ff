"""Pooling by slices of whole images, where PyTorch goes window by window.

Under ``vmap`` PyTorch first copies all users' images into one batch, and again in the backward
pass; slices need no copy, whatever the memory layout. :class:`Pooling` is a mode: inside it, a
model whose windows do not overlap is computed like this. A maximum of what went through ReLU is
taken of what went in: max(0, ·) is needed of whole windows then, not of every pixel.

What it gains: ``benchmarks/engine.py``, LeNet-5 (average) and ``vgg`` (maximum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ucfl.execution.marks import for_gpu, kept
from ucfl.execution.private import version

Kernel = tuple[int, int]

#: Pixels of a window up to which we take a maximum pixel by pixel; larger ones are PyTorch's.
LARGEST_WINDOW = 64


class Pooling(TorchFunctionMode):
    """Inside, windows that lie side by side are pooled by slices; all else is left to PyTorch."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Take a call to one of :data:`OURS` over, if it is a plain one."""
        if (ours := OURS.get(func)) is not None:
            out = ours(*args, **(kwargs or {}))
            if out is not None:
                return out
        return func(*args, **(kwargs or {}))


def _average(
    input: Tensor,  # noqa: A002 (PyTorch's name for it)
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor | None:
    kernel = _pair(kernel_size)
    tiled = input.shape[-2] % kernel[0] == 0 and input.shape[-1] % kernel[1] == 0
    if divisor_override is not None or not tiled or not _plain(kernel, stride, padding, 1):
        return None
    pooled: Tensor = _AveragePool.apply(input, kernel)  # type: ignore[no-untyped-call]
    return pooled


def _largest(
    input: Tensor,  # noqa: A002 (PyTorch's name for it)
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    kernel = _pair(kernel_size)
    if not 1 < kernel[0] * kernel[1] <= LARGEST_WINDOW or return_indices or ceil_mode:
        return None
    if not _plain(kernel, stride, padding, dilation):
        return None
    before = _before_relu(input)
    x = input if before is None else before
    pooled: Tensor = _MaxPool.apply(x, kernel, x is before)[0]  # type: ignore[no-untyped-call]
    return pooled


def _relu(input: Tensor, inplace: bool = False) -> Tensor | None:  # noqa: A002
    if inplace or input.is_inference():  # which has no version
        return None
    out = torch.relu(input)
    out._before_relu = input, _state(input, out)  # type: ignore[attr-defined]
    return out


def _before_relu(x: Tensor) -> Tensor | None:
    """What went into the ReLU that x came from, unless one of them was changed since."""
    before, state = getattr(x, "_before_relu", (None, None))
    return before if before is not None and state == _state(before, x) else None


def _state(before: Tensor, after: Tensor) -> tuple[object, ...]:
    """What changes when something is written to, or no gradient goes from one to the other."""
    gradients = torch.is_grad_enabled(), before.requires_grad, after.requires_grad
    return version(before), version(after), *gradients


OURS: dict[Any, Callable[..., Tensor | None]] = {
    F.avg_pool2d: _average,
    F.max_pool2d: _largest,
    torch.max_pool2d: _largest,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
}


class _AveragePool(torch.autograd.Function):
    """Rows are added whole, then columns."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Kernel) -> Tensor:
        (height, width), (*outer, rows, columns) = kernel, x.shape
        bands = x.reshape(*outer, rows // height, height, columns)
        total = sum((bands[..., i, :] for i in range(1, height)), bands[..., 0, :])
        cells = total.reshape(*outer, rows // height, columns // width, width)
        total = sum((cells[..., i] for i in range(1, width)), cells[..., 0])
        return total * (1 / (height * width))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kernel = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (height, width), (*outer, rows, columns) = ctx.kernel, gradient.shape
        share = gradient * (1 / (height * width))
        if not for_gpu(gradient):
            return _interleaved([[share] * width] * height), None
        wide = torch.stack([share] * width, -1).reshape(*outer, rows, 1, columns * width)
        whole = wide.expand(*outer, rows, height, columns * width)
        return whole.reshape(*outer, rows * height, columns * width), None


class _MaxPool(torch.autograd.Function):
    """The largest pixel of each window, and which one it is; ``or_zero``: or 0, if none is more.

    That is ReLU first: it leaves the largest pixel where it is, or none that a gradient goes to.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Kernel, or_zero: bool) -> tuple[Tensor, Tensor]:
        best, *others = _windows(x, kernel)
        place = torch.zeros_like(best, dtype=torch.uint8)
        if or_zero:
            others = [best, *others]
            best, place = torch.zeros_like(best), place + len(others)
        for i, pixels in enumerate(others, 0 if or_zero else 1):
            place = torch.where(pixels > best, i, place)  # the first of equals, as in PyTorch
            best = torch.maximum(best, pixels)
        return (kept(best), kept(place)) if for_gpu(x) else (best, place)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.kernel, _ = inputs
        ctx.image = x.shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Each window's largest pixel gets its gradient."""
        (place,), (height, width) = ctx.saved_tensors, ctx.kernel
        *outer, rows, columns = gradient.shape
        if for_gpu(gradient):  # every pixel looks it up: that can be fused with what comes next
            pixel = torch.arange(height * width, dtype=torch.uint8, device=place.device)
            chosen = place[..., None, :, None] == pixel.view(height, 1, width)
            dx = torch.where(chosen, gradient[..., None, :, None], 0)
            dx = dx.reshape(*outer, rows * height, columns * width)
        else:
            parts = [torch.where(place == i, gradient, 0) for i in range(height * width)]
            dx = _interleaved([parts[i : i + width] for i in range(0, len(parts), width)])
        left_over = ctx.image[1] - columns * width, ctx.image[0] - rows * height
        if any(left_over):
            dx = F.pad(dx, (0, left_over[0], 0, left_over[1]))
        return dx, None, None


def _windows(x: Tensor, kernel: Kernel) -> list[Tensor]:
    """The pixels at each place of their window, an image per place; what is left over is cut."""
    (height, width), (rows, columns) = kernel, x.shape[-2:]
    rows, columns = rows // height * height, columns // width * width
    return [x[..., i:rows:height, j:columns:width] for i in range(height) for j in range(width)]


def _interleaved(windows: list[list[Tensor]]) -> Tensor:
    """The image whose pixels at each place of their window are given."""
    lines = []
    for line in windows:
        if len(line) == 2 and line[0].dtype in (torch.float32, torch.float64):
            # As real and imaginary parts: in one go, where a stack goes pixel by pixel.
            lines.append(torch.view_as_real(torch.complex(*line)).flatten(-2))
        else:
            lines.append(torch.stack(line, -1).flatten(-2))
    return torch.stack(lines, -2).flatten(-3, -2)


def _plain(kernel: Kernel, stride: Any, padding: Any, dilation: Any) -> bool:
    """Whether windows lie side by side from the corner on."""
    beside = stride in (None, [], ()) or _pair(stride) == kernel
    return beside and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)


def _pair(size: Any) -> Kernel:
    if isinstance(size, int):
        return size, size
    sizes = tuple(size)
    return (sizes[0], sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
