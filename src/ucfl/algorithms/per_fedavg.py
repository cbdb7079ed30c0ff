"""Per-FedAvg: a global model that one gradient step on a user's data makes a good one for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.algorithms.finetuned import warn_of_no_rate
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.execution import Tensors
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.local import Gradient
from ucfl.options import BatchSize, Passes, Positive
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Meta:
    """On even batches the inner step, on odd ones the outer step. The state is w, w̃, buffers."""

    def __call__(
        self,
        gradient: Gradient,
        number: Tensor,
        state: tuple[Tensor, ...],
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """w̃ ← w − α ∇ℓ(w); then, on the next batch, w ← w − β ∇ℓ(w̃)."""
        w, adapted, rest = state
        alpha, beta = hyper
        inner = number % 2 == 0
        found, rest = gradient(torch.where(inner, w, adapted), rest)
        adapted = torch.where(inner, w - alpha * found, adapted)
        return torch.where(inner, w, w - beta * found), adapted, rest


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """min_w Σ_i p_i f_i(w − α ∇f_i(w)) by first-order MAML: w ← w − β ∇ℓ'(w − α ∇ℓ(w)).

    ℓ and ℓ' are the losses of two batches. Users take ``tau`` such steps, the server averages w,
    and what a user deploys is w after ``steps`` steps of rate ``alpha`` on its own data. The
    settings are the publication's: α = 0.01, β = 0.001, batches of 40, τ = 10, one step.
    """

    alpha: Positive = 0.01
    beta: Positive = 0.001
    batch: BatchSize = 40
    tau: Passes = 10
    steps: Passes = 1

    name: ClassVar[str] = "per-fedavg"
    reference: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    cost: ClassVar[str] = "1 down, 1 up, 2 τ + 1 batches of work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"
    unused: ClassVar[frozenset[str]] = frozenset(
        {"lr", "momentum", "batch", "epochs", "variance_batch"}
    )

    def check(self, fed: Federation) -> None:
        """Its steps are its own."""
        if fed.training.optimiser != "sgd" or fed.training.weight_decay:
            raise UcflError(
                "Per-FedAvg has steps of its own; train with optimiser = sgd and weight_decay = 0."
            )

    def training(self, fed: Federation) -> LocalTraining:
        """Plain SGD of rate α; an outer step has two batches."""
        return LocalTraining(
            self.alpha,
            0.0,
            self.batch,
            steps=2 * self.tau,
            last_batch=fed.training.last_batch,
            schedule=fed.training.schedule,
        )

    def adaptation(self, fed: Federation) -> LocalTraining:
        """The steps from the global model to a user's own."""
        return dataclasses.replace(self.training(fed), steps=self.steps)

    def start(self, fed: Federation) -> State:
        """Nothing to adapt yet."""
        return {"theta": fed.initial(), "personal": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Meta-steps everywhere, average; then adapt, on batches of the next round."""
        w, rest = fed.parts(tensor(state, "theta"))
        factor = fed.training.schedule(t)
        rates = factor * self.alpha, factor * self.beta
        w, _, rest = fed.iterate(Meta(), (w, w, rest), t, self.training(fed), hyper=rates)
        average = Mixing.average(fed.sizes).among(fed.present)
        theta = fed.exchange(average, torch.cat([w, rest], dim=1), tensor(state, "theta"))
        warn_of_no_rate(self.name, fed, t + 1)
        personal = fed.train(theta, t + 1, training=self.adaptation(fed))
        return {"theta": theta, "personal": fed.kept(personal, tensor(state, "personal"))}

    def models(self, state: State) -> Tensor:
        """The adapted models."""
        return tensor(state, "personal")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model, to be adapted."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; two batches for each step, and those of the adaptation."""
        worked = fed.examples(self.training(fed)) + fed.examples(self.adaptation(fed))
        return Traffic(down=1, up=1, work=fed.work(worked))
