"""FedRep: the personal head is trained first, for several epochs, then the shared body."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl.algorithms.algorithm import State
from ucfl.algorithms.fedper import FedPer
from ucfl.federation import Federation, LocalTraining
from ucfl.options import Passes
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FedRep(FedPer):
    """h_i ← ``head_epochs`` epochs on f_i(·, φ);  φ_i ← the scenario's epochs on f_i(h_i, ·).

    The body φ ← Σ_j (n_j / Σ n) φ_j is averaged, the head h_i (what is ``personal``) never leaves
    its user. While one of them is trained, the other is fixed. The scripts of the official code
    have 10 epochs of the head before the body's (``local_ep`` − ``local_rep_ep``).
    """

    head_epochs: Passes = 10

    name: ClassVar[str] = "fedrep"
    reference: ClassVar[str] = "Collins et al., ICML 2021"
    cost: ClassVar[str] = "1 down, 1 up, less what is personal; E more epochs of work"

    def local(self, fed: Federation, theta: Tensor, t: int) -> Tensor:
        """The head, then the body, over batches of their own."""
        head = fed.part(self.personal)
        theta = fed.train(theta, t, training=self.head_training(fed), only=head)
        return fed.train(theta, t, only=~head, draw=1)

    def head_training(self, fed: Federation) -> LocalTraining:
        """The scenario's training, for the head's number of epochs."""
        return dataclasses.replace(fed.training, epochs=self.head_epochs, steps=None)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedPer's messages; an epoch of the head counts as much as one of the whole model."""
        work = 1 + fed.work(fed.examples(self.head_training(fed)))
        return dataclasses.replace(super().traffic(fed, state), work=work)
