"""FedBN: normalisation layers stay with their user, the rest is averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ucfl.algorithms.fedper import FedPer
from ucfl.errors import UcflError
from ucfl.federation import Federation
from ucfl.options import PartName


@dataclass(frozen=True)
class FedBN(FedPer):
    """θ ← Σ_j (n_j / Σ n) θ_j but for normalisation layers: their γ, β, mean and variance stay.

    ``personal`` names what stays; everything is trained together, as in FedPer.
    """

    personal: PartName = "normalisation"

    name: ClassVar[str] = "fedbn"
    reference: ClassVar[str] = "Li et al., ICLR 2021"

    def check(self, fed: Federation) -> None:
        """The model has normalisation layers."""
        if not fed.rows.has_normalisation:
            raise UcflError(
                "FedBN keeps normalisation layers with their users, and the model has none; take "
                "one that has some (vgg, or your own with BatchNorm), or run fedavg."
            )
        super().check(fed)
