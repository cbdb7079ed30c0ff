"""A function as a graph of plain operations: traced once, then run without vmap or autograd.

Tracing records what a function does to tensors of given shapes. Slow operations are replaced by our
own on the way: pooling (:mod:`~ucfl.execution.pooling`), and for GPUs convolutions
(:mod:`~ucfl.execution.convolution`) with the passes that belong to them
(:mod:`~ucfl.execution.passes`). A CPU's graph is run without the GIL where TorchScript can
(:mod:`~ucfl.execution.torchscript`). With ``compiled``, PyTorch's compiler fuses the operations.

What it gains: ``benchmarks/engine.py``, the rows *traced* and *compiled*.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ucfl.errors import UcflWarning, first_line
from ucfl.execution import passes
from ucfl.execution.marks import for_gpu
from ucfl.execution.pooling import Pooling
from ucfl.execution.private import FUSION, make_graph
from ucfl.execution.torchscript import without_gil

Function = Callable[..., tuple[Tensor, ...]]

_tracer = threading.RLock()  # PyTorch's tracer has state of its own


class Untraceable(Exception):  # noqa: N818 (nobody sees it)
    """A function that cannot be computed in this way; its text says why."""


def trace(
    function: Function, arguments: list[Tensor], *, compiled: bool = False, written: int = 0
) -> Function:
    """The function as a graph, for arguments of the same shapes; or :class:`Untraceable`.

    The function may write to its first ``written`` arguments, and to nothing else.
    """
    gpu = for_gpu(arguments[0])
    # The tracer tells arguments apart by identity: one tensor given twice would be one input.
    arguments = [argument.detach() for argument in arguments]
    with _tracer:
        try:
            with Pooling():
                graph = make_graph(function, _decompositions() if gpu else {}, *arguments)
        except Exception as error:  # whatever the person's model does
            raise Untraceable(first_line(error)) from error
        for change in passes.FOR_GPU if gpu else passes.FOR_CPU:
            change(graph.graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        if compiled:
            return _compiled(graph, arguments, written)
        return graph if gpu else without_gil(graph)


def _compiled(graph: torch.fx.GraphModule, arguments: list[Tensor], written: int) -> Function:
    """The graph with its operations fused; itself, with a warning, where no compiler is there."""
    try:
        fused: Function = torch.compile(graph, dynamic=False, options=dict(FUSION))
        with warnings.catch_warnings():
            # On a CPU, pairs of pixels are complex numbers for a moment (pooling.py): no loss.
            warnings.filterwarnings("ignore", "Torchinductor does not support .* complex")
            fused(*(a.clone() for a in arguments[:written]), *arguments[written:])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no C++ compiler, for instance
        warnings.warn(
            f"the step cannot be compiled here ({first_line(error)}); it is run without: the same "
            "numbers up to rounding, but slower.",
            UcflWarning,
            stacklevel=2,
        )
        return graph

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():  # as it was compiled: another mode would compile again
            return fused(*given)

    return run


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """What replaces PyTorch's operations in a graph for a GPU."""
    try:
        from ucfl.execution import convolution
    except ImportError:  # no Triton: PyTorch's own convolutions are used
        return {}
    return convolution.DECOMPOSITIONS
