"""APFL: a user deploys a mixture of its own model and the global one, in a learnt proportion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.execution import Tensors
from ucfl.federation import Federation
from ucfl.federation.local import Gradient
from ucfl.federation.optimisers import OPTIMISERS, Optimiser, Rates
from ucfl.options import NotNegative, Share
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Mixed:
    """One step of w, v and, the first time in a round, α; all gradients are taken before it.

    The state is α, w, v, the buffers of w and of the mixture, and the optimiser's own for w and v.
    """

    optimiser: Optimiser

    def __call__(
        self,
        gradient: Gradient,
        number: Tensor,
        state: tuple[Tensor, ...],
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """The state after it."""
        alpha, w, v, rest, mixed_rest, *own = state
        lr, momentum, alpha_lr, *decay = hyper
        rates, half = Rates(lr, momentum, decay[0] if decay else None), len(own) // 2
        along, rest = gradient(w, rest)
        mixed, mixed_rest = gradient(alpha * v + (1 - alpha) * w, mixed_rest)
        moved = (alpha - alpha_lr * ((v - w) * mixed).sum()).clamp(0, 1)
        w, own_w = self.optimiser.update(along, w, tuple(own[:half]), rates)
        v, own_v = self.optimiser.update(alpha * mixed, v, tuple(own[half:]), rates)
        alpha = torch.where(number == 0, moved, alpha)
        return alpha, w, v, rest, mixed_rest, *own_w, *own_v


@dataclass(frozen=True)
class APFL(Algorithm):
    """User i deploys v̄_i = α_i v_i + (1 − α_i) w, with FedAvg's w and a v_i of its own.

    In every step w_i ← w_i − η ∇f_i(w_i) and v_i ← v_i − η α_i ∇f_i(v̄_i); in the first of a round
    also α_i ← α_i − η_α ⟨v_i − w_i, ∇f_i(v̄_i)⟩, kept in [0, 1]. ``alpha`` is the first α_i;
    η_α is ``alpha_lr``, and η itself where that is not given, as published. 0 fixes α.
    """

    alpha: Share = 0.5
    alpha_lr: NotNegative | None = None

    name: ClassVar[str] = "apfl"
    reference: ClassVar[str] = "Deng et al., arXiv 2003.13461, 2020"
    cost: ClassVar[str] = "1 down, 1 up, twice the work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"

    def check(self, fed: Federation) -> None:
        """Its steps' optimisers start anew in every round."""
        if fed.training.optimiser_state != "reset":
            raise UcflError("APFL has steps of its own; train with optimiser_state = reset.")

    def start(self, fed: Federation) -> State:
        """Everyone's own model is the global one."""
        theta = fed.initial()
        alpha = torch.full((fed.m,), self.alpha, dtype=theta.dtype, device=fed.device)
        return {"theta": theta, "own": theta, "mixed": theta, "alpha": alpha}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Steps of w, v and α; then w is averaged, and mixed with v."""
        training = fed.training
        optimiser, eta = OPTIMISERS[training.optimiser], training.rate(t)
        alpha_lr = eta if self.alpha_lr is None else self.alpha_lr * training.schedule(t)
        w, rest = fed.parts(tensor(state, "theta"))
        v, mixed_rest = fed.parts(tensor(state, "own"))
        alpha, w, v, rest, mixed_rest, *_ = fed.iterate(
            Mixed(optimiser),
            (tensor(state, "alpha"), w, v, rest, mixed_rest, *2 * optimiser.start(w)),
            t,
            training,
            hyper=(
                eta,
                training.momentum,
                alpha_lr,
                *[training.weight_decay] * bool(training.weight_decay),
            ),
        )
        average = Mixing.average(fed.sizes).among(fed.present)
        theta = fed.exchange(average, torch.cat([w, rest], dim=1), tensor(state, "theta"))
        w, _ = fed.parts(theta)
        mixed = alpha[:, None] * v + (1 - alpha[:, None]) * w
        return {
            "theta": theta,
            "own": torch.cat([v, mixed_rest], dim=1),
            "mixed": fed.kept(torch.cat([mixed, mixed_rest], dim=1), tensor(state, "mixed")),
            "alpha": alpha,
        }

    def models(self, state: State) -> Tensor:
        """The mixtures."""
        return tensor(state, "mixed")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; gradients of two models."""
        return Traffic(down=1, up=1, work=2)
