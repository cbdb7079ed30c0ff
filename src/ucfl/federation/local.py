"""Local training: a step of SGD for one user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ucfl.execution import Tensors
from ucfl.federation.model import LocalModel
from ucfl.federation.schedule import Batch

#: gradient(weights, rest) -> gradient, buffers: of one user's model on the batch of a step.
Gradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SGD:
    """v ← β v + ∇ℓ(θ) + λ (θ − towards) + direction;  θ ← θ − η v.

    The state is θ, v and the buffers; ``towards`` and ``direction`` are constants of the round.
    """

    model: LocalModel

    def __call__(
        self,
        state: tuple[Tensor, ...],
        batch: Batch,
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """One step."""
        weights, velocity, rest = state
        towards, direction = constants
        lr, momentum, strength = hyper
        step, rest = self.model.gradient(weights, rest, batch)
        if direction is not None:
            step = step + direction
        if towards is not None:
            step = step + strength * (weights - towards)
        velocity = momentum * velocity + step
        return weights - lr * velocity, velocity, rest


@dataclass(frozen=True)
class Own:
    """An algorithm's own step: ``update(gradient, number, state, constants, hyper) -> state``.

    ``gradient(weights, rest)`` is that of the user's batch, ``number`` counts the round's steps.
    """

    model: LocalModel
    update: Callable[..., tuple[Tensor, ...]]

    def __call__(
        self,
        state: tuple[Tensor, ...],
        batch: Batch,
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """One step."""

        def gradient(weights: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
            return self.model.gradient(weights, rest, batch)

        return self.update(gradient, batch.number, state, constants, hyper)
