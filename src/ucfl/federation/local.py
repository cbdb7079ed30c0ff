"""Local training: one step of one user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ucfl.execution import Tensors
from ucfl.federation.model import LocalModel
from ucfl.federation.optimisers import Optimiser, Rates
from ucfl.federation.schedule import Batch

#: gradient(weights, rest) -> gradient, buffers: of one user's model on the batch of a step.
Gradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class LocalStep:
    """One step of an optimiser along ∇ℓ(θ) + λ (θ − towards) + direction.

    The state is θ, the buffers, and the optimiser's own; ``towards``, ``direction`` and what is
    ``fixed`` of the model (None: nothing) are constants of the round. ``hyper`` are η, the
    momentum, λ, and the weight decay where there is one.
    """

    model: LocalModel
    optimiser: Optimiser

    def __call__(
        self,
        state: tuple[Tensor, ...],
        batch: Batch,
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """The state after it."""
        weights, rest, *own = state
        towards, direction, fixed = constants
        lr, momentum, strength, *decay = hyper
        if fixed is None:
            along, rest = self.model.gradient(weights, rest, batch)
        else:
            moving, everything = len(rest), torch.cat([rest, fixed])
            along, everything = self.model.gradient(weights, everything, batch)
            rest = everything[:moving]
        if direction is not None:
            along = along + direction
        if towards is not None:
            along = along + strength * (weights - towards)
        rates = Rates(lr, momentum, decay[0] if decay else None)
        weights, own_now = self.optimiser.update(along, weights, tuple(own), rates)
        return weights, rest, *own_now


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
