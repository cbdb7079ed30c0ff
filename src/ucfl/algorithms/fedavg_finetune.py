"""FedAvg with local fine-tuning: the simplest personalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ucfl.algorithms.finetuned import Finetuned
from ucfl.collaboration import Mixing
from ucfl.federation import Federation
from ucfl.options import Passes


@dataclass(frozen=True)
class FedAvgFinetune(Finetuned):
    """FedAvg; what a user deploys is the global model after ``epochs`` passes over its own data."""

    epochs: Passes = 1

    name: ClassVar[str] = "fedavg-finetune"
    reference: ClassVar[str] = "Wang et al., arXiv 1910.10252, 2019"
    cost: ClassVar[str] = "1 down, 1 up, E more epochs of work"

    @property
    def passes(self) -> int:
        """Epochs of fine-tuning."""
        return self.epochs

    def mixing(self, fed: Federation) -> Mixing:
        """FedAvg's."""
        return Mixing.average(fed.sizes).among(fed.present)
