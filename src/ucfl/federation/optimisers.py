"""Optimisers of local training, as PyTorch defines them: one step of one user.

An optimiser is a pure function of the gradient, the weights and its own state; rates are tensors,
so that they may change from round to round and nothing is traced again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rates:
    """What a step depends on beside the model: η, the momentum β, the weight decay.

    ``weight_decay`` is None where there is none: it would cost a pass over the weights.
    """

    lr: Tensor
    momentum: Tensor
    weight_decay: Tensor | None


class Optimiser(Protocol):
    """``update(gradient, weights, state, rates)`` gives the new weights and the new state."""

    def start(self, weights: Tensor) -> tuple[Tensor, ...]:
        """The state before the first step, for all users' ``weights`` [m, P]."""
        ...

    def update(
        self, gradient: Tensor, weights: Tensor, state: tuple[Tensor, ...], rates: Rates
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One user's step."""
        ...


@dataclass(frozen=True)
class SGD:
    """v ← β v + g;  θ ← θ − η v, and with Nesterov's momentum θ ← θ − η (g + β v).

    Weight decay adds its share of θ to g (``torch.optim.SGD``).
    """

    nesterov: bool = False

    def start(self, weights: Tensor) -> tuple[Tensor, ...]:
        """No velocity."""
        return (torch.zeros_like(weights),)

    def update(
        self, gradient: Tensor, weights: Tensor, state: tuple[Tensor, ...], rates: Rates
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One user's step."""
        if rates.weight_decay is not None:
            gradient = gradient + rates.weight_decay * weights
        velocity = rates.momentum * state[0] + gradient
        step = gradient + rates.momentum * velocity if self.nesterov else velocity
        return weights - rates.lr * step, (velocity,)


@dataclass(frozen=True)
class Adam:
    """m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  θ ← θ − η m̂ / (√v̂ + ε)  (Kingma and Ba).

    m̂ and v̂ are corrected for the start from zero. Weight decay adds its share of θ to g
    (``torch.optim.Adam``), or with ``decoupled`` shrinks θ by η times it (AdamW; Loshchilov and
    Hutter). β₁, β₂ and ε are PyTorch's defaults.
    """

    decoupled: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def start(self, weights: Tensor) -> tuple[Tensor, ...]:
        """Both moments are zero, and so is the number of steps."""
        zeros = torch.zeros_like(weights)
        return zeros, zeros, weights.new_zeros(len(weights))

    def update(
        self, gradient: Tensor, weights: Tensor, state: tuple[Tensor, ...], rates: Rates
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One user's step."""
        mean, square, steps = state
        if rates.weight_decay is not None:
            if self.decoupled:
                weights = weights - rates.lr * rates.weight_decay * weights
            else:
                gradient = gradient + rates.weight_decay * weights
        steps = steps + 1
        mean = self.beta1 * mean + (1 - self.beta1) * gradient
        square = self.beta2 * square + (1 - self.beta2) * gradient * gradient
        rate = rates.lr / (1 - self.beta1**steps)
        scale = (square / (1 - self.beta2**steps)).sqrt() + self.epsilon
        return weights - rate * (mean / scale), (mean, square, steps)


OPTIMISERS: dict[str, Optimiser] = {
    "sgd": SGD(),
    "nesterov": SGD(nesterov=True),
    "adam": Adam(),
    "adamw": Adam(decoupled=True),
}
