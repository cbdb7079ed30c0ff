"""What a user does in a round, and what an algorithm may add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ucfl.federation.rows import Rows
from ucfl.options import BatchSize, Momentum, NotNegative, Passes, check_fields

#: What becomes of a last batch that the user's data does not fill: it is left out (a user with less
#: than one batch keeps it), its gradient is scaled by count / B, or it makes a step like any other.
LastBatch = Literal["drop", "scale", "keep"]


#: What becomes of an optimiser's state (velocities, moments) between two rounds.
OptimiserState = Literal["reset", "keep"]


def constant(t: int) -> float:
    """The same rate in every round."""
    return 1.0


@dataclass(frozen=True)
class LocalTraining:
    """What a user does in a round: steps of an optimiser over its own data.

    ``optimiser`` is one of :data:`~ucfl.federation.optimisers.OPTIMISERS`; its state starts anew in
    every round, or is kept (then the run remembers it, user by user). ``schedule(t)`` is the factor
    of ``lr`` in round t. ``epochs`` passes over the data, or ``steps`` batches where that is given.
    Why short last batches are dropped by default: docs/last-batch.md.
    """

    lr: Annotated[float, Field(gt=0)] = 0.1  # of models in any precision
    momentum: Momentum = 0.9
    batch: BatchSize = 64
    epochs: Passes = 1
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    last_batch: LastBatch = "drop"
    optimiser: str = "sgd"
    optimiser_state: OptimiserState = "reset"
    weight_decay: NotNegative = 0.0
    schedule: Callable[[int], float] = constant

    def rate(self, t: int) -> float:
        """η of round t."""
        return self.lr * self.schedule(t)

    def __post_init__(self) -> None:
        check_fields(self, "local training")


@dataclass(frozen=True)
class Pull:
    """A term for every gradient: strength · (θ − towards) + direction.

    ``towards`` and ``direction`` are rows of Θ, one per user ([m, P]) or one for all ([P]).
    """

    strength: float = 0.0
    towards: Tensor | None = None
    direction: Tensor | None = None

    def rows(self, users: int, rows: Rows) -> tuple[Tensor | None, Tensor | None]:
        """``towards`` and ``direction`` of every user's trainable parameters."""

        def of(theta: Tensor | None) -> Tensor | None:
            if theta is None:
                return None
            return rows.trained.of(theta.expand(users, -1)).to(rows.dtype)

        return of(self.towards), of(self.direction)
