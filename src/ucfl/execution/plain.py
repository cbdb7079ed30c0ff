"""One user after another, by ordinary autograd, without padding: to debug, and for any model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ucfl.execution.differentiation import ordinary_autograd
from ucfl.execution.executor import Batches, Function, Step, Tensors
from ucfl.execution.precision import Precision, computing


@dataclass
class Plain:
    """The reference for the others, and what they hand over to what they cannot take.

    ``reason`` says why it was chosen, where nobody asked for it.
    """

    device: torch.device
    precision: Precision = "default"
    reason: str = ""
    traces: int = 0

    def __str__(self) -> str:
        return "plain: one user after another" + (f" ({self.reason})" if self.reason else "")

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
        """``function(*each[i], *examples[i], *shared)`` for every user i, without padding."""
        count = next(len(a) for a in (*each, *examples) if a is not None)
        longest = next((a.shape[1] for a in examples if a is not None), 0)
        # A user without examples has one of padding: not every model takes none.
        real = [longest] * count if lengths is None else lengths.clamp(1, longest).tolist()
        results = []
        with self._computing():
            for i in range(count):
                own = [None if a is None else a[i, : real[i]] for a in examples]
                out = function(*_of(each, i), *own, *shared)
                filled = examples and per_example
                results.append(tuple(_filled(o, longest) for o in out) if filled else out)
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

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
        users = []
        with self._computing():
            for i, count in enumerate(batches.counts):
                mine: Any = _of(state, i)
                each, fixed = _of(batches.each, i), _of(constants, i)
                for number in range(count):
                    batch = batches.cut.exact(number, each, batches.shared)
                    mine = step(mine, batch, fixed, hyper)
                users.append(mine)
        places = range(len(state)) if wanted is None else wanted
        return tuple(torch.stack([user[place] for user in users]) for place in places)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with computing(self.precision, self.device), ordinary_autograd(), torch.no_grad():
            yield


def _of(stacked: Tensors, user: int) -> Tensors:
    """One user's tensors."""
    return tuple(None if a is None else a[user] for a in stacked)


def _filled(result: Tensor, length: int) -> Tensor:
    """A result per example, with zeros in the place of padding; a number as it is."""
    if result.dim() == 0:
        return result
    return torch.cat([result, result.new_zeros(length - len(result), *result.shape[1:])])
