"""What a user does in a round, and what an algorithm may add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LocalTraining:
    """SGD with momentum, from zero velocity every round, over the user's own data.

    ``epochs`` passes over the data, or ``steps`` batches where that is given.
    """

    lr: float = 0.1
    momentum: float = 0.9
    batch: int = 64
    epochs: int = 1
    steps: int | None = None


@dataclass(frozen=True)
class Pull:
    """A term for every gradient: strength · (θ − towards) + direction.

    ``towards`` and ``direction`` are rows of Θ, one per user ([m, P]) or one for all ([P]).
    """

    strength: float = 0.0
    towards: Tensor | None = None
    direction: Tensor | None = None

    def at(self, users: Tensor, trainable: int) -> Callable[[Tensor], Tensor]:
        """The term as a function of some users' trainable parameters."""

        def rows(theta: Tensor) -> Tensor:
            return (theta[users] if theta.dim() == 2 else theta)[..., :trainable]

        towards = None if self.towards is None else rows(self.towards)
        direction = None if self.direction is None else rows(self.direction)

        def term(weights: Tensor) -> Tensor:
            added = torch.zeros_like(weights) if direction is None else direction
            return added if towards is None else added + self.strength * (weights - towards)

        return term
