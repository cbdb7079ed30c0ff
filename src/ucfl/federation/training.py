"""What a user does in a round, and what an algorithm may add to it."""

from __future__ import annotations

from dataclasses import dataclass

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

    def at(self, users: Tensor, trainable: int) -> tuple[float, Tensor | None, Tensor | None]:
        """Strength, towards and direction for some users' trainable parameters."""

        def rows(theta: Tensor | None) -> Tensor | None:
            if theta is None:
                return None
            return (theta[users] if theta.dim() == 2 else theta.expand(len(users), -1))[
                :, :trainable
            ].contiguous()

        return self.strength, rows(self.towards), rows(self.direction)


def pulled(
    slope: Tensor,
    weights: Tensor,
    strength: float,
    towards: Tensor | None,
    direction: Tensor | None,
) -> Tensor:
    """The gradient with the pull's term."""
    if direction is not None:
        slope = slope + direction
    return slope if towards is None else slope + strength * (weights - towards)
