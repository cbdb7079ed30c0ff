"""LG-FedAvg: local representations, a global head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ucfl.algorithms.fedper import FedPer
from ucfl.options import PartName


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """Θ_head ← Σ_j (n_j / Σ n) Θ_head,j; the body, which computes features, stays with its user.

    ``personal`` names what stays; everything is trained together, as in FedPer.
    """

    personal: PartName = "body"

    name: ClassVar[str] = "lg-fedavg"
    reference: ClassVar[str] = "Liang et al., arXiv 2001.01523, 2020"
