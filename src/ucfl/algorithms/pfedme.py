"""pFedMe: personal models as proximal points of a global one (Moreau envelopes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Federation, LocalTraining, Pull
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """For each batch: θ̃ ≈ argmin f_i(θ) + λ/2 ‖θ − w‖² by S steps, then w ← w − ηλ(w − θ̃).

    λ is ``strength``, S ``inner_steps``, η ``lr`` and the rate of the inner steps ``personal_lr``.
    The paper's settings: both rates 0.01, S = 15, one epoch, batch 20; λ = 15 is the publication's.
    """

    strength: float = 15.0
    inner_steps: int = 15
    lr: float = 0.01
    personal_lr: float = 0.01
    batch: int = 20
    epochs: int = 1

    name: ClassVar[str] = "pfedme"
    reference: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    cost: ClassVar[str] = "1 down, 1 up, S times the work"
    tested_model: ClassVar[str] = "personalised"

    def training(self, fed: Federation) -> LocalTraining:
        """Plain SGD: the inner steps solve a proximal problem, and momentum has no part in it."""
        return LocalTraining(self.personal_lr, 0.0, self.batch, self.epochs)

    def start(self, fed: Federation) -> State:
        """The personal models start from the global one."""
        return {"theta": fed.initial(), "personal": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Walk each user's w towards its proximal points; average the w."""
        w, personal = tensor(state, "theta"), tensor(state, "personal")
        for step in fed.walk(t, self.training(fed)):
            near = step(w, Pull(self.strength, towards=w), times=self.inner_steps)
            w = w - self.lr * self.strength * (w - near)  # an idle user's near is w
            personal = near if step.idle is None else torch.where(step.idle, personal, near)
        return {"theta": Mixing.average(fed.sizes) @ w, "personal": personal}

    def models(self, state: State) -> Tensor:
        """The personal models."""
        return tensor(state, "personal")

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; every batch is worked on S times."""
        return Traffic(down=1, up=1, work=self.inner_steps * self.epochs / fed.training.epochs)
