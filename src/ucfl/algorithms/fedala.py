"""FedALA: every user learns, number by number, how much of the global model's head to take."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.execution import Tensors
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.local import Gradient
from ucfl.options import PartName, Passes, Positive, PositiveShare
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Aggregation:
    """One step of W for θ = base + gap ⊙ W. The state is W, base, gap and the buffers."""

    def __call__(
        self,
        gradient: Gradient,
        number: Tensor,
        state: tuple[Tensor, ...],
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """W ← clip(W − η ∇ℓ(θ) ⊙ gap, 0, 1); buffers stay as they are."""
        weights, base, gap, rest = state
        found, _ = gradient(base + gap * weights, rest)
        return (weights - hyper[0] * found * gap).clamp(0, 1), base, gap, rest


@dataclass(frozen=True)
class FedALA(Algorithm):
    """θ_i ← θ_i + (θ_global − θ_i) ⊙ W_i in ``part``, θ_global elsewhere; then local training.

    W_i starts at 1 and is learnt by W_i ← clip(W_i − η ∇ℓ ⊙ (θ_global − θ_i), 0, 1) over a random
    ``sample`` of the user's data before every local training: ``start_passes`` times when it does
    so first, and once later. η is ``lr``. The server averages the local models.
    """

    part: PartName = "head"
    lr: Positive = 1.0
    sample: PositiveShare = 0.8
    start_passes: Passes = 11

    name: ClassVar[str] = "fedala"
    reference: ClassVar[str] = "Zhang et al., AAAI 2023"
    cost: ClassVar[str] = "1 down, 1 up, 0.8 passes more work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"

    def check(self, fed: Federation) -> None:
        """The model has the part."""
        fed.part(self.part)

    def start(self, fed: Federation) -> State:
        """All of the global model is taken."""
        ones = torch.ones(fed.m, int(self.columns(fed).sum()), dtype=fed.rows.dtype)
        nobody = torch.zeros(fed.m, dtype=torch.bool, device=fed.device)
        return {
            "theta": fed.initial(),
            "local": fed.initial(),
            "weights": ones.to(fed.device),
            "learnt": nobody,
            "averaged": False,
            "worked": 0,
        }

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Learn W, aggregate at the user, train, average."""
        theta, local, learnt = (tensor(state, part) for part in ("theta", "local", "learnt"))
        columns, cut = self.columns(fed), fed.rows.trainable
        inside = columns.nonzero()[:, 0]
        weights = torch.ones_like(theta[:, :cut]).index_copy(1, inside, tensor(state, "weights"))
        base = torch.where(columns, local[:, :cut], theta[:, :cut])
        gap, rest = theta[:, :cut] - base, theta[:, cut:].contiguous()
        for some, passes in self.learners(fed, state):
            for _ in range(passes):
                weights, *_ = some.iterate(
                    Aggregation(),
                    (weights, base, gap, rest),
                    t,
                    self.learning(fed),
                    hyper=(self.lr,),
                    share=self.sample,
                )
        trained = fed.train(torch.cat([base + gap * weights, rest], dim=1), t)
        everyone = torch.ones_like(learnt)
        return {
            "theta": fed.exchange(Mixing.average(fed.sizes).among(fed.present), trained, theta),
            "local": fed.kept(trained, local),
            "weights": weights[:, inside],
            "learnt": fed.kept(everyone, learnt) if state["averaged"] else learnt,
            "averaged": True,
            "worked": self.examples(fed, state),
        }

    def columns(self, fed: Federation) -> Tensor:
        """Which trained parameters W is for."""
        return fed.part(self.part).mask[: fed.rows.trainable].to(fed.device)

    def learners(self, fed: Federation, state: State) -> list[tuple[Federation, int]]:
        """Who learns W in a round, in how many passes; before the first average, nobody."""
        if not state["averaged"]:
            return []
        learnt = tensor(state, "learnt")
        present = torch.ones_like(learnt) if fed.present is None else fed.present
        return [
            (fed.among(present & ~learnt), self.start_passes),
            (fed.among(present & learnt), 1),
        ]

    def learning(self, fed: Federation) -> LocalTraining:
        """The scenario's batches, in one pass."""
        return dataclasses.replace(fed.training, epochs=1, steps=None)

    def examples(self, fed: Federation, state: State) -> int:
        """How many examples a round from this state learns W from."""
        return sum(
            passes * some.examples(self.learning(fed), share=self.sample)
            for some, passes in self.learners(fed, state)
        )

    def models(self, state: State) -> Tensor:
        """The local models."""
        return tensor(state, "local")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; learning W is work too."""
        return Traffic(down=1, up=1, work=1 + fed.work(float(state["worked"])))

    def next_traffic(self, fed: Federation, state: State) -> Traffic:
        """Of users who learn W for the first time, or again."""
        return Traffic(down=1, up=1, work=1 + fed.work(self.examples(fed, state)))
