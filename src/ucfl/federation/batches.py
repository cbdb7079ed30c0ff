"""Which examples a user sees at which step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


def batches(
    data: Users,
    users: Tensor,
    seed: int,
    t: int,
    batch: Tensor,
    steps: Tensor,
    padded: int,
    weights: Tensor | None = None,
    keyed: bool = True,
) -> Iterator[Batch]:
    """The training batches of some users, step by step.

    Step s of user i is the (s mod S_i)-th batch of ``batch[i]`` examples in its (s div S_i)-th
    pass; every pass is a new random order, and its last batch may be short. Stacked batches are
    ``padded`` to one width, or, with 0, cut to the first user's. ``weights`` [m, n] are those of
    all users' examples. Without ``keyed``, steps have no names: no layer asks for them.
    """
    device, train = users.device, data.train
    sizes, ids = train.sizes[users], data.ids[users]
    each = passes(sizes, batch)
    fewest, most = int(steps.min()), int(steps.max())
    epochs, longest = int(passes(steps, each).max()), int(sizes.max())
    order = orders(seed, t, ids, sizes, epochs, longest)
    row = torch.arange(len(users), device=device)[:, None]
    widths = [padded] * most
    if not padded:
        n, b = int(sizes[0]), int(batch[0])
        widths = [min(b, n - step % -(-n // b) * b) for step in range(most)]
    for step, width in enumerate(widths):
        start = (step % each) * batch
        count = torch.minimum(sizes - start, batch)
        column = torch.arange(width, device=device)
        place = (start[:, None] + column).clamp(max=longest - 1)
        epoch = (step // each).clamp(max=epochs - 1)  # an idle user's is never used
        index = order[row, epoch[:, None], place]
        yield Batch(
            train.inputs[users[:, None], index],
            train.labels[users[:, None], index],
            column < count[:, None] if padded else None,
            None if weights is None else weights[users[:, None], index],
            count,
            counter_hash(seed, t, ids, step) if keyed else ids,
            None if step < fewest else (step >= steps)[:, None],
        )
