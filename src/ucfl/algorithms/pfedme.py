"""pFedMe: personal models as proximal points of a global one (Moreau envelopes)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.execution import Tensors
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.local import Gradient
from ucfl.options import BatchSize, NotNegative, Passes, Positive
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Proximal:
    """One inner step; behind every ``times``-th, the outer one.

    The state is w, θ̃, and the buffers of either. A batch's first inner step starts from w.
    """

    times: int

    def __call__(
        self,
        gradient: Gradient,
        number: Tensor,
        state: tuple[Tensor, ...],
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """θ̃ ← θ̃ − (∇ℓ(θ̃) + λ (θ̃ − w)) · rate; then w ← w − ηλ(w − θ̃)."""
        w, near, rest, near_rest = state
        lr, strength, outer_lr = hyper
        starts, ends = number % self.times == 0, number % self.times == self.times - 1
        near, near_rest = torch.where(starts, w, near), torch.where(starts, rest, near_rest)
        found, near_rest = gradient(near, near_rest)
        near = near - lr * (found + strength * (near - w))
        moved = outer_lr * strength
        w = torch.where(ends, w - moved * (w - near), w)
        # Buffers that training leaves alone stay as they are, also where they are infinite.
        trained = ends & (rest != near_rest)
        rest = torch.where(trained, rest - moved * (rest - near_rest), rest)
        return w, near, rest, near_rest


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """For each batch: θ̃ ≈ argmin f_i(θ) + λ/2 ‖θ − w‖² by S steps, then w ← w − ηλ(w − θ̃).

    λ is ``strength``, S ``inner_steps``, η ``lr`` and the rate of the inner steps ``personal_lr``.
    The paper's settings: both rates 0.01, S = 15, one epoch, batch 20; λ = 15 is the publication's.
    """

    strength: NotNegative = 15.0
    inner_steps: Passes = 15
    lr: Positive = 0.01
    personal_lr: Positive = 0.01
    batch: BatchSize = 20
    epochs: Passes = 1

    name: ClassVar[str] = "pfedme"
    reference: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    cost: ClassVar[str] = "1 down, 1 up, S times the work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"
    unused: ClassVar[frozenset[str]] = frozenset(
        {"lr", "momentum", "batch", "epochs", "variance_batch"}
    )

    def check(self, fed: Federation) -> None:
        """Its steps are its own."""
        if fed.training.optimiser != "sgd" or fed.training.weight_decay:
            raise UcflError(
                "pFedMe has steps of its own; train with optimiser = sgd and weight_decay = 0."
            )

    def training(self, fed: Federation) -> LocalTraining:
        """Plain SGD: the inner steps solve a proximal problem, and momentum has no part in it."""
        training = LocalTraining(self.personal_lr, 0.0, self.batch, self.epochs)
        return dataclasses.replace(
            training, last_batch=fed.training.last_batch, schedule=fed.training.schedule
        )

    def start(self, fed: Federation) -> State:
        """The personal models start from the global one."""
        return {"theta": fed.initial(), "personal": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Move each user's w towards its proximal points; average the w."""
        w, rest = fed.parts(tensor(state, "theta"))
        factor = fed.training.schedule(t)
        w, near, rest, near_rest = fed.iterate(
            Proximal(self.inner_steps),
            (w, w, rest, rest),
            t,
            self.training(fed),
            hyper=(factor * self.personal_lr, self.strength, factor * self.lr),
            repeat=self.inner_steps,
        )
        personal = torch.cat([near, near_rest], dim=1)
        average = Mixing.average(fed.sizes).among(fed.present)
        return {
            "theta": fed.exchange(average, torch.cat([w, rest], dim=1), tensor(state, "theta")),
            "personal": fed.kept(personal, tensor(state, "personal")),
        }

    def models(self, state: State) -> Tensor:
        """The personal models."""
        return tensor(state, "personal")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; every batch is worked on S times."""
        worked = fed.examples(self.training(fed), repeat=self.inner_steps)
        return Traffic(down=1, up=1, work=fed.work(worked))
