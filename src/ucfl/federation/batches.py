"""Which examples a user sees at which step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ucfl.federation.draws import counter_hash, orders
from ucfl.users import Users


@dataclass(frozen=True)
class Batch:
    """One step of several users, stacked.

    ``real`` marks the examples that are not padding (None: all), ``weights`` scales their losses
    (None: by 1), ``count`` says how many are real, ``key`` names the step for random layers.
    ``idle`` marks users that have had all their steps; what they compute is dropped (None: nobody).
    """

    inputs: Tensor
    labels: Tensor
    real: Tensor | None
    weights: Tensor | None
    count: Tensor
    key: Tensor
    idle: Tensor | None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a loss needs of the batch, each with users first or None."""
        return self.inputs, self.labels, self.real, self.weights, self.count, self.key

    def part(self, users: Tensor) -> Batch:
        """Some of the users."""
        parts: Any = [a if a is None else a[users] for a in (*self.arguments, self.idle)]
        return Batch(*parts)


def passes(sizes: Tensor, batch: Tensor) -> Tensor:
    """S_i = ⌈n_i / B_i⌉: the steps of one pass over each user's data."""
    return (sizes + batch - 1) // batch


@dataclass(frozen=True)
class Plan:
    """What some users do in every round: all of a :class:`Schedule` but the draws."""

    users: Tensor
    ids: Tensor
    sizes: Tensor
    batch: Tensor
    steps: Tensor
    fewest: int
    most: int
    epochs: int

    @classmethod
    def of(cls, data: Users, users: Tensor, batch: Tensor, steps: Tensor) -> Plan:
        """``batch`` and ``steps`` are those of the users."""
        sizes, ids = data.train.sizes[users], data.ids[users]
        epochs = int(passes(steps, passes(sizes, batch)).max())
        return cls(users, ids, sizes, batch, steps, int(steps.min()), int(steps.max()), epochs)

    def drawn(self, seed: int, t: int) -> Schedule:
        """The schedule of round t."""
        order = orders(seed, t, self.ids, self.sizes, self.epochs, int(self.sizes.max()))
        return self.with_order(order, seed, t)

    def with_order(self, order: Tensor, seed: int, t: int | Tensor) -> Schedule:
        """The schedule of round t, which has drawn this order."""
        device = self.users.device
        key = [n if isinstance(n, Tensor) else torch.full((), n, device=device) for n in (seed, t)]
        return Schedule(self.users, self.ids, self.sizes, self.batch, self.steps, order, *key)


@dataclass(frozen=True)
class Schedule:
    """What some users see in a round: orders of their examples, cut into batches.

    Step s of user i is the (s mod S_i)-th batch of ``batch[i]`` examples in its (s div S_i)-th
    pass; every pass is a new random order, and its last batch may be short. All but the data are
    small tensors with users first, so that a graph can take them as arguments.
    """

    users: Tensor
    ids: Tensor
    sizes: Tensor
    batch: Tensor
    steps: Tensor
    order: Tensor  # [users, passes, examples]
    seed: Tensor
    t: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def at(
        self,
        data: Users,
        step: int | Tensor,
        width: int,
        *,
        padded: bool,
        idle: bool,
        weights: Tensor | None = None,
        keyed: bool = True,
    ) -> Batch:
        """The users' batches of one step, ``width`` examples each.

        Without ``padded`` all of them are real; with ``idle`` some users may have had all their
        steps. ``weights`` [m, n] are those of all users' examples. Without ``keyed``, steps have
        no names: no layer asks for them.
        """
        train, each = data.train, passes(self.sizes, self.batch)
        start = (step % each) * self.batch
        count = torch.minimum(self.sizes - start, self.batch)
        column = torch.arange(width, device=self.users.device)
        place = (start[:, None] + column).clamp(max=self.order.shape[2] - 1)
        epoch = (step // each).clamp(max=self.order.shape[1] - 1)  # an idle user's is never used
        row = torch.arange(len(self.users), device=self.users.device)[:, None]
        index = self.order[row, epoch[:, None], place]
        owner = self.users[:, None]
        return Batch(
            train.inputs[owner, index],
            train.labels[owner, index],
            column < count[:, None] if padded else None,
            None if weights is None else weights[owner, index],
            count,
            counter_hash(self.seed, self.t, self.ids, step) if keyed else self.ids,
            (step >= self.steps)[:, None] if idle else None,
        )

    def batches(
        self, data: Users, widest: int, weights: Tensor | None = None, keyed: bool = True
    ) -> Iterator[Batch]:
        """Step by step; ``widest`` examples and padding, or with 0 as many as all users have."""
        fewest, most = int(self.steps.min()), int(self.steps.max())
        n, b = int(self.sizes[0]), int(self.batch[0])
        for step in range(most):
            width = widest or min(b, n - step % -(-n // b) * b)
            options: Any = {"padded": bool(widest), "idle": step >= fewest}
            yield self.at(data, step, width, weights=weights, keyed=keyed, **options)
