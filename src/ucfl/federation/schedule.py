"""Which examples a user sees at which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ucfl.execution import Batches, Executor, Tensors
from ucfl.federation.draws import counter_hash, order_keys, ordered
from ucfl.federation.training import LastBatch
from ucfl.memory import check_fits
from ucfl.users import Users


@dataclass(frozen=True)
class Batch:
    """What one user sees in one step.

    ``real`` marks the examples that are not padding (None: all), ``weights`` scales their losses
    (None: by 1), ``count`` says how many are real, ``divisor`` what the sum of losses is divided
    by, ``key`` names the step for random layers (None: there are none). ``number`` counts the
    user's steps.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor | None
    weights: Tensor | None
    count: Tensor
    divisor: Tensor
    key: Tensor | None
    number: Tensor


#: One user's row of the data, key of its draws, number of examples, batch size, batches of a pass,
#: orders [passes, n] of its examples, and weights [n] of their losses (None: all 1).
User = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]


#: Of one draw: more than any number of steps.
MOST_PASSES = 2**20


def batches_per_pass(sizes: Tensor, batch: Tensor, last: LastBatch) -> Tensor:
    """S_i: ⌈n_i / B_i⌉ batches of one pass over each user's data; ⌊n_i / B_i⌋ for ``drop``.

    A user with fewer than B_i examples has one batch in any case.
    """
    if last == "drop":
        return (sizes // batch).clamp(min=1)
    return (sizes + batch - 1) // batch


@dataclass(frozen=True)
class Cut:
    """The batch of a step, for one user: a pure function of the step's number.

    Each batch is used ``repeat`` times in a row. Batch b of user i is the (b mod S_i)-th of
    ``batch[i]`` examples in its (b div S_i)-th pass, every pass being a new random order. ``width``
    is the longest batch of any user; without ``padded``, all are that long. Without ``keyed``,
    steps have no keys: no layer asks for them.
    """

    width: int
    padded: bool
    keyed: bool
    scaled: bool
    repeat: int = 1

    def __call__(self, number: Tensor, each: Tensors, shared: tuple[Tensor, ...]) -> Batch:
        """The user's batch, padded with other examples of its own."""
        return self._at(number, each, shared, None)

    def exact(self, number: int, each: Tensors, shared: tuple[Tensor, ...]) -> Batch:
        """The user's batch without padding."""
        _, _, size, batch, per_pass, *_ = cast(User, each)
        start = number // self.repeat % int(per_pass) * int(batch)
        width = min(int(size) - start, int(batch))
        return self._at(torch.full_like(size, number), each, shared, width)

    def _at(
        self, number: Tensor, each: Tensors, shared: tuple[Tensor, ...], exact: int | None
    ) -> Batch:
        row, draw, size, batch, per_pass, order, weights = cast(User, each)
        inputs, targets = shared
        which = number // self.repeat if self.repeat > 1 else number
        start = which % per_pass * batch
        count = torch.minimum(size - start, batch)
        place = torch.arange(exact or self.width, device=size.device)
        epoch = (which // per_pass).clamp(max=order.shape[0] - 1)  # of a user that is done: any
        # Indices of equal shapes: a single number would have to be read from the device.
        position = (start + place) % size if self.padded else start + place
        index = order[epoch.expand_as(position), position]
        owner = row.expand_as(index)
        return Batch(
            inputs[owner, index],
            targets[owner, index],
            place < count if self.padded and exact is None else None,
            None if weights is None else weights[index],
            count,
            batch if self.scaled else count,
            counter_hash(draw, number) if self.keyed else None,
            number,
        )


@dataclass(frozen=True)
class Plan:
    """What users do in every round: all of their batches but the draws.

    User i takes ``counts[i]`` steps in up to ``passes`` passes, and sees ``examples[i]``.
    """

    cut: Cut
    rows: Tensor
    batch: Tensor
    per_pass: Tensor
    steps: Tensor
    counts: tuple[int, ...]
    passes: int
    examples: tuple[int, ...]

    @classmethod
    def of(
        cls,
        sizes: Tensor,
        batch: Tensor,
        steps: Tensor | None,
        *,
        epochs: int = 1,
        last: LastBatch,
        keyed: bool,
        repeat: int = 1,
    ) -> Plan:
        """``batch`` [m] examples a step, for ``epochs`` passes or ``steps`` [m] batches."""
        per_pass = batches_per_pass(sizes, batch, last)
        steps = per_pass * epochs if steps is None else steps
        full = torch.minimum(batch, sizes)
        # The last batch that is reached; a user who is done goes on until the last one is.
        short = torch.minimum(steps.max(), per_pass) * full > sizes
        width = int(full.max())
        cut = Cut(
            width=width,
            padded=bool((short | (full < width)).any()),
            keyed=keyed,
            scaled=last == "scale",
            repeat=repeat,
        )
        passes = int((-(-steps // per_pass)).max())
        check_fits(
            16.0 * len(sizes) * passes * int(sizes.max()),  # keys and orders, eight bytes each
            f"the orders of {len(sizes)} users' examples in {passes} passes over them",
            "take fewer epochs or steps",
            sizes.device,
        )
        seen = torch.minimum(per_pass * batch, sizes) * (steps // per_pass)
        seen += torch.minimum(steps % per_pass * batch, sizes)
        steps = steps * repeat
        examples = tuple((seen * repeat).tolist())
        rows = torch.arange(len(sizes), device=sizes.device)
        return cls(cut, rows, batch, per_pass, steps, tuple(steps.tolist()), passes, examples)

    def drawn(
        self,
        users: Users,
        executor: Executor,
        seed: int,
        t: int,
        weights: Tensor | None = None,
        among: tuple[Tensor, list[int]] | None = None,
        draw: int = 0,
    ) -> Batches:
        """The batches of round t; ``weights`` [m, n] scale the losses of the users' examples.

        ``among``: of these users alone, whose places are given as a tensor and as numbers.
        ``draw`` tells several draws of one round apart.
        """
        train, counts = users.train, self.counts
        parts: tuple[Tensor, ...] = (
            *(users.ids, self.rows, train.sizes),
            *(self.batch, self.per_pass, self.steps),
        )
        if among is not None:
            here, places = among
            parts = tuple(part[here] for part in parts)
            weights = None if weights is None else weights[here]
            counts = tuple(self.counts[user] for user in places)
        ids, rows, sizes, batch, per_pass, steps = parts
        round_number = torch.full((), t, device=ids.device)
        keys = OrderKeys(seed, self.passes, train.targets.shape[1], draw * MOST_PASSES)
        if len(ids):
            (key,) = executor.map(keys, ids, sizes, shared=(round_number,))
        else:
            key = ids.new_zeros(0, self.passes, train.targets.shape[1])
        place = (round_number, ids, draw) if draw else (round_number, ids)
        draws = counter_hash(seed, *place) if self.cut.keyed else ids
        each = rows, draws, sizes, batch, per_pass, ordered(key), weights
        return Batches(self.cut, each, (train.inputs, train.targets), counts, steps)


@dataclass(frozen=True)
class OrderKeys:
    """What one user's examples are ordered by, pass by pass."""

    seed: int
    passes: int
    longest: int
    first: int = 0

    def __call__(self, name: Tensor, size: Tensor, t: Tensor) -> tuple[Tensor]:
        """[passes, longest]; ``first`` is the number of the first pass."""
        return (order_keys(self.seed, t, name, size, self.passes, self.longest, self.first),)
