"""Traced steps recorded as CUDA graphs: one launch per step, and no Python in between.

Gains over :mod:`~ucfl.execution.stacked` on a GPU: ``benchmarks/engine.py gpu``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ucfl.errors import UcflWarning, first_line
from ucfl.execution.chunks import Chunk
from ucfl.execution.private import version
from ucfl.execution.stacked import Run, Stacked
from ucfl.execution.tracing import trace


@dataclass
class Recorded(Stacked):
    """Stacked users whose graphs are recorded.

    A CUDA graph is tied to the memory that it was recorded on. Each recording has memory of its own
    for its arguments, except for the resident ones (all users' training data), which it reads where
    they are.
    """

    def _where(self) -> str:
        return ", CUDA graphs"

    def _places(self, arguments: list[Tensor], resident: int) -> Any:
        return tuple(a.data_ptr() for a in arguments[len(arguments) - resident :])

    def _kept(self, chunk: Chunk, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Copies: the next call overwrites what a recording returns."""
        return tuple(chunk.new(result).clone() for result in results)

    def _made(self, function: Run, arguments: list[Tensor], carried: int, resident: int) -> Run:
        if not self.traced:
            return super()._made(function, arguments, carried, resident)
        self.traces += 1
        in_place = InPlace(function, carried)
        run = trace(in_place, arguments, compiled=self.compiled, written=carried)
        try:
            return Recording(run, arguments, carried, resident)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that waits for the device, for instance
            warnings.warn(
                f"a step cannot be recorded as a CUDA graph ({first_line(error)}); it is launched "
                "operation by operation: the same numbers, but slower.",
                UcflWarning,
                stacklevel=5,
            )
            return self._in_precision(trace(function, arguments, compiled=self.compiled))


@dataclass(frozen=True)
class InPlace:
    """A function that writes its new state where it found the old one; it returns all else.

    As part of the traced function: PyTorch's compiler then computes the state in its place.
    """

    function: Run
    carried: int

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What is returned beside the state."""
        outputs = self.function(*tensors)
        for place, value in zip(tensors[: self.carried], outputs, strict=False):
            place.copy_(value)
        return outputs[self.carried :]


class Recording:
    """A recorded run, for arguments of the same shapes.

    An argument that was given before and has not changed since (by identity and PyTorch's version
    counter) is not copied again; a state that is fed back costs nothing. What is returned is
    overwritten by the next call.
    """

    def __init__(self, run: Run, arguments: list[Tensor], carried: int, resident: int) -> None:
        device = arguments[0].device
        own = len(arguments) - resident
        self._carried = carried
        self._inputs = [a.clone() for a in arguments[:own]] + arguments[own:]
        self._given: list[tuple[Tensor | None, int]] = [(None, 0)] * own
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # compiles kernels, and lets libraries allocate their workspaces
                run(*self._inputs)
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            others = run(*self._inputs)
        self._outputs = (*self._inputs[:carried], *others)
        self._replay = graph.replay

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The function of these arguments."""
        for i, (known, before) in enumerate(self._given):
            place, argument = self._inputs[i], arguments[i]
            if argument is not place and (argument is not known or version(argument) != before):
                place.copy_(argument)
            if i >= self._carried:  # a state may live in another recording, which goes on with it
                self._given[i] = argument, version(argument)
        self._replay()
        return self._outputs
