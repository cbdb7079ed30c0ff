"""Local training of some users: a step, the loop over it, and single steps of everyone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ucfl.federation.batches import Batch, Schedule
from ucfl.federation.draws import order_keys, ordered
from ucfl.federation.training import LocalTraining, Pull, pulled

if TYPE_CHECKING:
    from ucfl.federation.engine import Federation


def train_chunk(
    fed: Federation,
    theta: Tensor,
    users: Tensor,
    t: int,
    pull: Pull | None,
    training: LocalTraining,
    example_weights: Tensor | None,
) -> Tensor:
    """Local SGD of some users from their rows of Θ; their new rows."""
    cut = fed.rows.trainable
    weights, rest = theta[users, :cut].contiguous(), theta[users, cut:].contiguous()
    state: tuple[Tensor, ...] = (weights, torch.zeros_like(weights), rest)
    strength, towards, direction = pull.at(users, cut) if pull else (0.0, None, None)

    def step(
        weights: Tensor,
        velocity: Tensor,
        rest: Tensor,
        towards: Tensor | None,
        direction: Tensor | None,
        idle: Tensor | None,
        *batch: Any,
    ) -> tuple[Tensor, ...]:
        slope, new_rest = fed.slopes(weights, rest, *batch)
        slope = pulled(slope, weights, strength, towards, direction)
        new_velocity = training.momentum * velocity + slope
        new_weights = weights - training.lr * new_velocity
        if idle is None:
            return new_weights, new_velocity, new_rest
        return (
            torch.where(idle, weights, new_weights),
            torch.where(idle, velocity, new_velocity),
            torch.where(idle, rest, new_rest),
        )

    kind = ("step", training.lr, training.momentum, strength)
    if not fed.whole_steps:
        sizes, steps = torch.full_like(users, training.batch), fed.steps_of(training)[users]
        for batch in fed.batches_of(users, t, sizes, steps, training.batch, example_weights):
            arguments = (towards, direction, batch.idle, *batch.arguments)
            state = fed.graph(kind, step, *state, *arguments, carried=3)
        return torch.cat([state[0], state[2]], dim=1)

    plan = fed.plan(users, training)
    idle = plan.fewest < plan.most
    padded = fed.equal_size is None or fed.equal_size % training.batch != 0

    def whole_step(
        weights: Tensor,
        velocity: Tensor,
        rest: Tensor,
        number: Tensor,
        towards: Tensor | None,
        direction: Tensor | None,
        inputs: Tensor,
        labels: Tensor,
        importance: Tensor | None,
        *schedule: Tensor,
    ) -> tuple[Tensor, ...]:
        data = fed.users.with_train(inputs, labels)
        batch = Schedule(*schedule).at(
            data,
            number,
            training.batch,
            padded=padded,
            idle=idle,
            weights=importance,
            keyed=fed.keyed,
        )
        after = step(weights, velocity, rest, towards, direction, batch.idle, *batch.arguments)
        return *after, number + 1

    def keys(t: Tensor, ids: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        return (order_keys(fed.seed, t, ids, sizes, plan.epochs, longest),)

    train = fed.users.train
    # As long for every chunk: one graph serves them all.
    longest = train.labels.shape[1]
    number = torch.full((), t, device=fed.device)  # a number that Python has would be waited for
    drawn = fed.graph(("order", plan.epochs), keys, number, plan.ids, plan.sizes)
    schedule = plan.with_order(ordered(*drawn), fed.seed, number)
    state = (*state, torch.zeros((), dtype=torch.int64, device=fed.device))
    fixed = (towards, direction, train.inputs, train.labels, example_weights)
    for _ in range(plan.most):
        state = fed.graph(
            (*kind, idle, training.batch),
            whole_step,
            *state,
            *fixed,
            *schedule.tensors,
            carried=4,
        )
    return torch.cat([state[0], state[2]], dim=1)


@dataclass(frozen=True)
class Step:
    """One batch of every user; calling it takes steps of plain SGD on it from any Θ."""

    fed: Federation
    batch: Batch
    lr: float

    @property
    def idle(self) -> Tensor | None:
        """[m, 1] mask of the users that have had all their batches (None: nobody)."""
        return self.batch.idle

    def __call__(self, theta: Tensor, pull: Pull | None = None, times: int = 1) -> Tensor:
        """θ ← θ − lr · (gradient + pull), ``times`` over, with the buffers that come out."""
        fed, cut = self.fed, self.fed.rows.trainable

        def stepped(users: Tensor) -> Tensor:
            strength, towards, direction = pull.at(users, cut) if pull else (0.0, None, None)

            def descent(
                weights: Tensor,
                rest: Tensor,
                towards: Tensor | None,
                direction: Tensor | None,
                *batch: Any,
            ) -> tuple[Tensor, ...]:
                slope, rest = fed.slopes(weights, rest, *batch)
                slope = pulled(slope, weights, strength, towards, direction)
                return weights - self.lr * slope, rest

            state: tuple[Tensor, ...] = (
                theta[users, :cut].contiguous(),
                theta[users, cut:].contiguous(),
            )
            fixed = (towards, direction, *self.batch.part(users).arguments)
            for _ in range(times):
                kind = ("descent", self.lr, strength)
                state = fed.graph(kind, descent, *state, *fixed, carried=2)
            return torch.cat(state, 1)

        after = torch.cat(fed.chunks.over(stepped))
        return after if self.idle is None else torch.where(self.idle, theta, after)
