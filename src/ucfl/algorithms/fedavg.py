"""FedAvg: one model for all, the average of everyone's local models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing, MixingByPart
from ucfl.federation import Federation
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """θ ← Σ_j (n_j / Σ n) θ_j (paper, eq. 1)."""

    name: ClassVar[str] = "fedavg"
    reference: ClassVar[str] = "McMahan et al., AISTATS 2017"
    cost: ClassVar[str] = "1 down, 1 up"
    sharded: ClassVar[bool] = True
    deployable: ClassVar[bool] = True
    tested_model: ClassVar[str] = "aggregated"

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model."""
        return {"theta": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere, average."""
        theta = self.models(state)
        return {**state, "theta": self.mixed(fed, state, fed.train(theta, t), theta)}

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """One broadcast per stream, one model up per user."""
        return Traffic(down=self.mixing(fed).sent, up=1)

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor | None:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def rule(self, fed: Federation, state: State) -> Mixing | MixingByPart:
        """The average."""
        return self.mixing(fed)

    def mixing(self, fed: Federation) -> Mixing:
        """Who is averaged with whom."""
        return Mixing.average(fed.sizes).among(fed.present)
