"""A step as a graph: traced once, then run without vmap, autograd or Python between its operations.

Tracing records what a function does to its tensors, for given shapes. What comes out are plain
operations, in which slow ones are exchanged for our own: pooling
(:mod:`~ucfl.federation.pooling`), and on GPUs convolutions
(:mod:`~ucfl.federation.convolution`). On a GPU the whole graph becomes one CUDA graph: one launch,
where there were hundreds; on a CPU it is run without Python
(:mod:`~ucfl.federation.scripts`). With ``compiled``, PyTorch's compiler fuses the operations first.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ucfl.errors import UcflWarning
from ucfl.federation import passes
from ucfl.federation.marks import for_gpu
from ucfl.federation.pooling import Pooling
from ucfl.federation.scripts import without_python

Function = Callable[..., tuple[Tensor, ...]]


#: When PyTorch's compiler keeps a result rather than compute it again where it is used: later than
#: by its own defaults. All users' images are large and their arithmetic is little, so that storing
#: a normalised image costs more than normalising it twice.
FUSION = {
    "realize_reads_threshold": 8,
    "realize_acc_reads_threshold": 12,
    "realize_opcount_threshold": 50,
}


class _Turns:
    """Any number of threads may run compiled graphs, or one may trace.

    PyTorch refuses to run what it has compiled while anything in the process is being traced, and
    threads that share out a federation's chunks meet new shapes whenever they do.
    """

    def __init__(self) -> None:
        self._change, self._running = threading.Condition(), 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Others may run as well."""
        with self._change:
            self._running += 1
        try:
            yield
        finally:
            with self._change:
                self._running -= 1
                self._change.notify_all()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Nobody else runs or traces."""
        with self._change:
            self._change.wait_for(lambda: self._running == 0)
            yield


_turns = _Turns()


class Graph:
    """A function of tensors (or None), ready for arguments shaped like the first ones.

    The first ``carried`` arguments are a state: the function returns them anew before anything
    else. On a GPU they live in the graph, so feeding them back costs nothing, nor does any other
    argument that was given before and has not changed since. What is returned is overwritten by the
    next call; copies of it, not itself, are what other graphs may be given.
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
        self._turn = _turns.running if compiled else nullcontext
        on_gpu = self._device.type == "cuda"
        step = _in_place(packed, carried) if on_gpu else packed
        self._replay: Callable[[], None] | None = None
        with _turns.tracing():
            self._run = _traced(step, given, compiled)
        if self._run is step:
            self._run = packed
        elif on_gpu:
            self._capture(given, carried)

    def __call__(self, *arguments: Tensor | None) -> tuple[Tensor, ...]:
        """The function of other arguments."""
        given = [argument for argument in arguments if argument is not None]
        if self._replay is None:
            with self._turn():
                return self._run(*given)
        for i, (place, argument) in enumerate(zip(self._inputs, given, strict=True)):
            known, version = self._given[i]
            if argument is not place and (argument is not known or argument._version != version):
                place.copy_(argument)
            if i >= self._carried:  # a state may live in another graph, which goes on with it
                self._given[i] = argument, argument._version
        self._replay()
        return self._outputs

    def _capture(self, arguments: list[Tensor], carried: int) -> None:
        """Record the run, with places of its own for all that goes in and out."""
        self._carried = carried
        self._inputs = [argument.clone() for argument in arguments]
        self._given: list[tuple[Tensor | None, int]] = [(None, 0)] * len(arguments)
        aside = torch.cuda.Stream(self._device)
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # compiles kernels, and lets libraries take their workspaces
                self._run(*self._inputs)
        torch.cuda.current_stream(self._device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            others = self._run(*self._inputs)
        self._outputs = (*self._inputs[:carried], *others)
        self._replay = graph.replay


def _in_place(function: Function, carried: int) -> Function:
    """The function, writing its new state where it found the old one; it returns all else.

    As part of the function: PyTorch's compiler then computes the state in its place.
    """

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = function(*tensors)
        for place, value in zip(tensors[:carried], outputs, strict=False):
            place.copy_(value)
        return outputs[carried:]

    return step


def _traced(function: Function, arguments: list[Tensor], compiled: bool) -> Function:
    """The function as a graph of plain operations; itself where that cannot be had."""
    try:
        with Pooling():
            graph = make_fx(
                function,
                decomposition_table=_decompositions(arguments[0]),
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )(*arguments)
        if for_gpu(arguments[0]):
            passes.drop_sums(graph.graph)
            passes.keep(graph.graph)
            passes.share(graph.graph)
            passes.measure(graph.graph)
            passes.add_up(graph.graph)
        else:
            passes.simplify(graph.graph)
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
        return graph if for_gpu(arguments[0]) else without_python(graph)
    try:
        fused: Function = torch.compile(graph, dynamic=False, options=dict(FUSION))
        with warnings.catch_warnings():
            # On a CPU, pairs of pixels are complex numbers for a moment (pooling.py): no loss.
            warnings.filterwarnings("ignore", "Torchinductor does not support .* complex")
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


def _decompositions(x: Tensor) -> dict[Any, Callable[..., Any]]:
    """What to put in the place of slow operations."""
    if not for_gpu(x):
        return {}
    try:
        from ucfl.federation import convolution
    except ImportError:  # no Triton: PyTorch's own convolutions do
        return {}
    return convolution.DECOMPOSITIONS
