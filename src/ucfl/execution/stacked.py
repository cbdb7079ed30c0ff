"""Users stacked with ``vmap``, in chunks; traced steps, and on a CPU chunks shared out to threads.

Gains over :mod:`~ucfl.execution.plain` and where they are measured: ``benchmarks/engine.py cpu``
(tracing, threads), ``benchmarks/chunks.py`` (stacking).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from ucfl.errors import UcflWarning, first_line
from ucfl.execution.chunks import Chunk, chunks
from ucfl.execution.executor import Batches, Cut, Function, Step, Tensors
from ucfl.execution.plain import Plain
from ucfl.execution.precision import Precision, computing
from ucfl.execution.tracing import Untraceable, trace

Run = Callable[..., tuple[Tensor, ...]]
Groups = tuple[Tensors, ...]


@dataclass
class Stacked:
    """``chunk`` users at a time. With ``traced``, functions become graphs of plain operations.

    Only graphs run in threads: they have no state, while a module whose parameters are swapped
    would be shared. What cannot be stacked or traced is found out before anything is computed, and
    goes to :class:`Plain`, with a warning.
    """

    device: torch.device
    chunk: int
    traced: bool = True
    compiled: bool = False
    precision: Precision = "default"
    traces: int = 0
    handed_over: str = ""
    _runs: dict[Any, Run | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.plain = Plain(self.device, self.precision)

    def __str__(self) -> str:
        how = "compiled" if self.compiled else "traced" if self.traced else "not traced"
        if self.handed_over:
            return f"{self.plain} ({self.handed_over})"
        return f"stacked: up to {self.chunk} users at a time, {how}{self._where()}"

    def _where(self) -> str:
        return f", {torch.get_num_threads()} threads" if self._threaded else ""

    @property
    def _threaded(self) -> bool:
        return self.traced and self.device.type == "cpu" and torch.get_num_threads() > 1

    # -- the interface ----------------------------------------------------------------------

    def map(
        self,
        function: Function,
        *each: Tensor | None,
        examples: Tensors = (),
        lengths: Tensor | None = None,
        per_example: bool = True,
        shared: tuple[Tensor, ...] = (),
        load: float = 1.0,
    ) -> tuple[Tensor, ...]:
        """``function(*each[i], *examples[i], *shared)`` for every user i, padding included."""
        stacked, shared = (*each, *examples), tuple(t.contiguous() for t in shared)
        parts = self._chunks(next(len(a) for a in stacked if a is not None), load)

        def groups(chunk: Chunk) -> Groups:
            return tuple(_rows(chunk, stacked)), shared

        first = groups(parts[0])
        layout = _layout(*zip((True, False), first, strict=True))
        run = self._prepared(Stack(Apply(function), layout, self._alone(parts)), _flat(first))
        if run is None:
            return self.plain.map(
                function,
                *each,
                examples=examples,
                lengths=lengths,
                per_example=per_example,
                shared=shared,
                load=load,
            )

        def result(chunk: Chunk) -> tuple[Tensor, ...]:
            given = first if chunk is parts[0] else groups(chunk)
            return self._kept(chunk, run(*_flat(given)))

        return self._joined(result, parts)

    def iterate(
        self,
        step: Step,
        state: tuple[Tensor, ...],
        batches: Batches,
        hyper: tuple[Tensor, ...] = (),
        constants: Tensors = (),
        wanted: Sequence[int] | None = None,
        load: float = 1.0,
    ) -> tuple[Tensor, ...]:
        """Every user's state after its steps."""
        parts = self._chunks(len(state[0]), load)
        counts = [batches.counts[part.start : part.stop] for part in parts]
        ragged = any(min(each) < max(each) for each in counts)
        ends = batches.steps if ragged else None
        places = range(len(state)) if wanted is None else wanted
        resident = tuple(t.contiguous() for t in batches.shared)

        def groups(chunk: Chunk) -> Groups:
            return (
                tuple(_rows(chunk, state)),
                (torch.zeros((), dtype=torch.int64, device=self.device),),
                tuple(_rows(chunk, (ends, *batches.each))),
                tuple(_rows(chunk, constants)),
                hyper,
                resident,
            )

        first = groups(parts[0])
        users_first = (True, False, True, True, False, False)
        layout = _layout(*zip(users_first, first, strict=True))
        stack = Stack(Once(step, batches.cut, ragged), layout, self._alone(parts))
        advance = Advance(stack, len(state))
        run = self._prepared(advance, _flat(first), carried=len(state) + 1, resident=len(resident))
        if run is None:
            return self.plain.iterate(step, state, batches, hyper, constants, wanted, load)

        def result(chunk: Chunk) -> tuple[Tensor, ...]:
            now, number, *rest = first if chunk is parts[0] else groups(chunk)
            carried, fixed = tuple(_flat((now, number))), _flat(tuple(rest))
            steps = max(batches.counts[chunk.start : chunk.stop])
            for _ in range(steps):
                carried = run(*carried, *fixed)
            if not steps:  # results never share memory with what was given
                carried = tuple(part.clone() for part in carried)
            return self._kept(chunk, tuple(carried[place] for place in places))

        return self._joined(result, parts)

    # -- how ---------------------------------------------------------------------------------

    def _chunks(self, users: int, load: float) -> tuple[Chunk, ...]:
        least = 1 if self.chunk == 1 else 2
        return chunks(users, max(least, int(self.chunk / load)))

    def _alone(self, parts: tuple[Chunk, ...]) -> bool:
        """Whether users go without ``vmap``: only where the tracer sees what depends on data.

        (Under ``vmap`` it raises. Elsewhere padding could decide a branch of the model's.)
        """
        return self.traced and parts[0].stop - parts[0].start == 1

    def _kept(self, chunk: Chunk, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What is to be kept of a chunk's results."""
        return tuple(chunk.new(result) for result in results)

    def _joined(
        self, function: Callable[[Chunk], tuple[Tensor, ...]], parts: tuple[Chunk, ...]
    ) -> tuple[Tensor, ...]:
        """The function of every chunk; in threads of one core each, where it only runs graphs.

        Small models keep cores busier that way than several cores inside one operation.
        """
        threads = torch.get_num_threads()
        if len(parts) == 1:
            return function(parts[0])
        if not self._threaded:
            return _cat([function(part) for part in parts])
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(min(threads, len(parts))) as pool:
                return _cat(list(pool.map(function, parts)))
        finally:
            torch.set_num_threads(threads)

    def _prepared(
        self, function: Run, arguments: list[Tensor], carried: int = 0, resident: int = 0
    ) -> Run | None:
        """The function, ready to run on arguments like these; None where it cannot be.

        The first ``carried`` arguments are a state, which the function returns before anything
        else; the last ``resident`` ones are the same tensors in every call.
        """
        key = (
            function,
            tuple((a.shape, a.dtype) for a in arguments),
            self._places(arguments, resident),
        )
        if key not in self._runs:
            with computing(self.precision, self.device), torch.no_grad():
                try:
                    self._runs[key] = self._made(function, arguments, carried, resident)
                except Untraceable as error:
                    self._runs[key] = None
                    self._hand_over(str(error))
        return self._runs[key]

    def _places(self, arguments: list[Tensor], resident: int) -> Any:
        """What of the arguments' places in memory a prepared function depends on."""
        return None

    def _made(self, function: Run, arguments: list[Tensor], carried: int, resident: int) -> Run:
        if self.traced:
            self.traces += 1
            return trace(function, arguments, compiled=self.compiled)
        try:
            function(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the person's model does under vmap
            raise Untraceable(first_line(error)) from error
        return self._in_precision(function)

    def _in_precision(self, function: Run) -> Run:
        def run(*given: Tensor) -> tuple[Tensor, ...]:
            with computing(self.precision, self.device), torch.no_grad():
                return function(*given)

        return run

    def _hand_over(self, why: str) -> None:
        if not self.handed_over:
            self.handed_over = f"all at once is not possible: {why}"
            warnings.warn(
                f"the model cannot be computed for several users at once ({why}); its users go "
                "one after another: the same numbers, but slower.",
                UcflWarning,
                stacklevel=4,
            )


@dataclass(frozen=True)
class Stack:
    """A function of one user's groups of tensors, as one of several users' flat tensors.

    ``layout`` says of each group whether users come first in it, and which tensors are there;
    ``alone``, that there is one user, who needs no ``vmap``.
    """

    function: Callable[..., tuple[Tensor, ...]]
    layout: tuple[tuple[bool, tuple[bool, ...]], ...]
    alone: bool

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The function for all users, stacked."""
        dims = [
            0 if users_first else None
            for users_first, there in self.layout
            for here in there
            if here
        ]
        if self.alone:
            alone = [t if dim is None else t[0] for t, dim in zip(tensors, dims, strict=True)]
            return tuple(out[None] for out in self._one(*alone))
        several: tuple[Tensor, ...] = vmap(self._one, in_dims=tuple(dims))(*tensors)
        return several

    def _one(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        groups = [tuple(next(rest) if here else None for here in there) for _, there in self.layout]
        return self.function(*groups)


@dataclass(frozen=True)
class Apply:
    """A function of tensors, as one of two groups of them."""

    function: Function

    def __call__(self, each: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        """Its results."""
        return tuple(self.function(*each, *shared))


@dataclass(frozen=True)
class Once:
    """One step of one user; ``ragged`` says that some users have fewer steps, and then wait."""

    step: Step
    cut: Cut
    ragged: bool

    def __call__(
        self,
        state: tuple[Tensor, ...],
        number: tuple[Tensor],
        each: Tensors,
        constants: Tensors,
        hyper: tuple[Tensor, ...],
        shared: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """The state after it."""
        end, *data = each
        batch = self.cut(number[0], tuple(data), shared)
        after = self.step(state, batch, constants, hyper)
        if not self.ragged:
            return after
        assert end is not None
        done = number[0] >= end
        return tuple(torch.where(done, old, new) for old, new in zip(state, after, strict=True))


@dataclass(frozen=True)
class Advance:
    """A stacked step that counts: the argument behind the ``state`` is its number."""

    stack: Stack
    state: int

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The new state, and the next number."""
        return *self.stack(*tensors), tensors[self.state] + 1


def _cat(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _rows(chunk: Chunk, stacked: Tensors) -> list[Tensor | None]:
    return [None if a is None else chunk.of(a) for a in stacked]


def _flat(groups: Groups) -> list[Tensor]:
    return [tensor for group in groups for tensor in group if tensor is not None]


def _layout(*groups: tuple[bool, Tensors]) -> tuple[tuple[bool, tuple[bool, ...]], ...]:
    return tuple((first, tuple(t is not None for t in group)) for first, group in groups)
