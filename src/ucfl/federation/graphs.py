"""A step as a graph: traced once, then run without vmap, autograd or Python between its operations.

Tracing records what a function does to its tensors, for given shapes. What comes out are plain
operations, in which slow ones are exchanged for our own: average pooling, and on GPUs max pooling
and convolutions (:mod:`~ucfl.federation.convolution`). On a GPU the whole graph becomes one CUDA
graph: one launch, where there were hundreds. With ``compiled``, PyTorch's compiler fuses the
operations first.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ucfl.errors import UcflWarning

Function = Callable[..., tuple[Tensor, ...]]


class Graph:
    """A function of tensors (or None), ready for arguments shaped like the first ones.

    The first ``carried`` arguments are a state: the function returns them anew before anything
    else. On a GPU they live in the graph, so feeding them back costs nothing, nor does an argument
    that was given before (it must not have changed); what is returned is overwritten by the next
    call.
    """

    def __init__(
        self,
        function: Function,
        arguments: Sequence[Tensor | None],
        *,
        carried: int = 0,
        compiled: bool = False,
    ) -> None:
        given = [argument for argument in arguments if argument is not None]
        there = [argument is not None for argument in arguments]

        def packed(*tensors: Tensor) -> tuple[Tensor, ...]:
            rest = iter(tensors)
            return function(*(next(rest) if real else None for real in there))

        self._device = given[0].device
        self._run = _traced(packed, given, compiled)
        self._replay: Callable[[], None] | None = None
        if self._device.type == "cuda" and self._run is not packed:
            self._capture(given, carried)

    def __call__(self, *arguments: Tensor | None) -> tuple[Tensor, ...]:
        """The function of other arguments."""
        given = [argument for argument in arguments if argument is not None]
        if self._replay is None:
            return self._run(*given)
        for i, (place, argument) in enumerate(zip(self._inputs, given, strict=True)):
            if argument is not place and argument is not self._given[i]:
                place.copy_(argument)
            self._given[i] = argument
        self._replay()
        return self._outputs

    def _capture(self, arguments: list[Tensor], carried: int) -> None:
        """Record the run, with places of its own for all that goes in and out."""
        self._inputs = [argument.clone() for argument in arguments]
        self._given: list[Tensor | None] = [None] * len(arguments)
        aside = torch.cuda.Stream(self._device)
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # compiles kernels, and lets libraries take their workspaces
                self._run(*self._inputs)
        torch.cuda.current_stream(self._device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._run(*self._inputs)
            for place, value in zip(self._inputs[:carried], outputs, strict=False):
                place.copy_(value)
        self._outputs = (*self._inputs[:carried], *outputs[carried:])
        self._replay = graph.replay


def _traced(function: Function, arguments: list[Tensor], compiled: bool) -> Function:
    """The function as a graph of plain operations; itself where that cannot be had."""
    try:
        graph = make_fx(
            function,
            decomposition_table=_decompositions(arguments[0].device),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
        )(*arguments)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    except Exception as error:  # whatever the person's model does
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"the model cannot be traced ({reason}); training goes on, but slower.",
            UcflWarning,
            stacklevel=2,
        )
        return function
    if not compiled:
        run: Function = graph
        return run
    try:
        fused: Function = torch.compile(graph, dynamic=False)
        fused(*(argument.clone() for argument in arguments))
    except Exception as error:  # no C++ compiler, for instance
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"the step cannot be compiled here ({reason}); training goes on without.",
            UcflWarning,
            stacklevel=2,
        )
        return graph
    return fused


def _decompositions(device: torch.device) -> dict[Any, Callable[..., Any]]:
    """What to put in the place of slow operations."""
    ours: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.avg_pool2d.default: _average_pool,
        torch.ops.aten.avg_pool2d_backward.default: _average_pool_backward,
    }
    if device.type == "cpu":
        return ours
    ours |= {
        torch.ops.aten.max_pool2d_with_indices.default: _max_pool,
        torch.ops.aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    }
    try:
        from ucfl.federation import convolution
    except ImportError:  # no Triton: PyTorch's own convolutions do
        return ours
    return ours | convolution.DECOMPOSITIONS


def _tiles(x: Tensor, kernel: list[int], stride: list[int], padding: Any, divisor: Any) -> bool:
    """Whether pooling windows tile the image: nothing overlaps, nothing is left over."""
    padding = padding if isinstance(padding, list | tuple) else [padding]
    height, width = kernel
    tiled = list(stride or kernel) == list(kernel) and not any(padding) and divisor is None
    return tiled and x.shape[-2] % height == 0 and x.shape[-1] % width == 0


def _average_pool(
    x: Tensor,
    kernel: list[int],
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Rows are added whole, then columns: whole vectors, where PyTorch goes value by value."""
    if not _tiles(x, kernel, stride, padding, divisor_override):
        return NotImplemented
    (height, width), (*outer, rows, columns) = kernel, x.shape
    bands = x.reshape(*outer, rows // height, height, columns)
    total = sum((bands[..., i, :] for i in range(1, height)), bands[..., 0, :])
    cells = total.reshape(*outer, rows // height, columns // width, width)
    total = sum((cells[..., i] for i in range(1, width)), cells[..., 0])
    return total * (1 / (height * width))


def _average_pool_backward(
    gradient: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    if not _tiles(x, kernel, stride, padding, divisor_override):
        return NotImplemented
    (height, width), (*outer, rows, columns) = kernel, gradient.shape
    share = gradient * (1 / (height * width))
    wide = torch.stack([share] * width, -1).reshape(*outer, rows, 1, columns * width)
    return wide.expand(*outer, rows, height, columns * width).reshape(x.shape)


def _windows(x: Tensor, kernel: Sequence[int]) -> list[Tensor]:
    """The pixels at each place of their window, one image per place; what is left over is cut."""
    (height, width), (rows, columns) = kernel, x.shape[-2:]
    rows, columns = rows // height * height, columns // width * width
    return [x[..., i:rows:height, j:columns:width] for i in range(height) for j in range(width)]


def _pools_plainly(
    kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Any, ceil_mode: bool
) -> bool:
    """Whether windows lie side by side from the corner on."""
    moved = [*padding] if isinstance(padding, list | tuple) else [padding]
    spread = [*dilation] if isinstance(dilation, list | tuple) else [dilation]
    beside = len(kernel) == 2 and list(stride or kernel) == list(kernel)
    return beside and not any(moved) and set(spread) == {1} and not ceil_mode


def _max_pool(
    x: Tensor,
    kernel: list[int],
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    if not _pools_plainly(kernel, stride, padding, dilation, ceil_mode):
        return NotImplemented
    (height, width), columns = kernel, x.shape[-1]
    best, *others = _windows(x, kernel)
    row = torch.arange(best.shape[-2], device=x.device)[:, None] * height
    corner = row * columns + torch.arange(best.shape[-1], device=x.device) * width
    where = corner.expand(best.shape)  # dead code, unless somebody asks for the indices
    for place, other in enumerate(others, start=1):
        at = corner + (place // width * columns + place % width)
        where = torch.where(other > best, at, where)
        best = torch.maximum(best, other)
    return best, where


def _max_pool_backward(
    gradient: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Any:
    """The first of a window's largest pixels gets its gradient, as in PyTorch."""
    if not _pools_plainly(kernel, stride, padding, dilation, ceil_mode):
        return NotImplemented
    (_, width), (*outer, rows, columns) = kernel, gradient.shape
    windows = _windows(x, kernel)
    best = functools.reduce(torch.maximum, windows)
    taken = torch.zeros_like(best, dtype=torch.bool)
    parts = []
    for pixels in windows:
        here = (pixels == best) & ~taken
        taken = taken | here
        parts.append(torch.where(here, gradient, 0))
    lines = [
        torch.stack(parts[i : i + width], -1).reshape(*outer, rows, columns * width)
        for i in range(0, len(parts), width)
    ]
    whole = torch.stack(lines, -2).reshape(*outer, rows * kernel[0], columns * width)
    left_over = [x.shape[-1] - whole.shape[-1], x.shape[-2] - whole.shape[-2]]
    return torch.constant_pad_nd(whole, [0, left_over[0], 0, left_over[1]])
