"""The interface between *what* is computed and *how*: pure functions of one user, for all users.

A caller writes functions of **one** user's tensors. An executor evaluates them for every user: one
after another (:mod:`~ucfl.execution.plain`), stacked with ``vmap`` and traced into graphs
(:mod:`~ucfl.execution.stacked`), or as recorded CUDA graphs (:mod:`~ucfl.execution.cuda`). All give
the same numbers up to rounding; ``tests/execution/test_executors.py`` holds each of them to that.

Functions must be pure: no state outside their arguments, no random numbers but counter-based ones.
They are keys of caches, so what is the same function must compare equal: a module-level function,
or an instance of a frozen dataclass. Numbers that change from call to call (a learning rate) are
tensors among the arguments, never part of the function: nothing is traced again for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

#: Tensors, or None in the place of one that is not there.
Tensors = tuple[Tensor | None, ...]
#: A function of one user's tensors and of shared ones.
Function = Callable[..., tuple[Tensor, ...]]
#: step(state, batch, constants, hyper) -> state, for one user.
Step = Callable[[tuple[Tensor, ...], Any, Tensors, tuple[Tensor, ...]], tuple[Tensor, ...]]


class Cut(Protocol):
    """How a step's batch is taken from the data; a pure function of one user."""

    def __call__(self, number: Tensor, each: Tensors, shared: tuple[Tensor, ...]) -> Any:
        """The batch of step ``number``, of the same shape for every number and user."""
        ...

    def exact(self, number: int, each: Tensors, shared: tuple[Tensor, ...]) -> Any:
        """The same batch without padding."""
        ...


@dataclass(frozen=True, eq=False)
class Batches:
    """What a loop reads: step s of user i reads ``cut(s, each[i], shared)``.

    ``each`` are tensors with users first, ``shared`` are those that all users look things up in,
    such as everyone's training data; an executor may keep referring to them, so they must not be
    replaced in place. User i takes ``counts[i]`` steps; ``steps`` is the same as a tensor.
    """

    cut: Cut
    each: Tensors
    shared: tuple[Tensor, ...]
    counts: Sequence[int]
    steps: Tensor


class Executor(Protocol):
    """How functions of one user are evaluated for all users.

    ``load`` says how much memory one user's call takes, as a multiple of one training step: an
    executor that takes several users at a time takes fewer when they are heavier.
    """

    #: How many functions have been traced so far; 0 for executors that trace nothing.
    traces: int

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
        """``function(*each[i], *examples[i], *shared)``, a tuple, for every user i, stacked.

        ``examples`` are [users, n, ...], of which user i's first ``lengths[i]`` are not padding;
        results are then numbers, or have examples first (without ``per_example``, any shape). What
        results hold for padding is not specified.
        """
        ...

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
        """Every user's state after its steps: state ← step(state, batch, constants, hyper).

        ``state`` and ``constants`` have users first; ``hyper`` are numbers for all of them.
        ``wanted`` are the places of the parts of the state to return (None: all of it).
        """
        ...
