"""Local: every user trains alone, and nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ucfl.algorithms.algorithm import Algorithm, State
from ucfl.federation import Federation
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Local(Algorithm):
    """θ_i ← θ_i after local training: W = I."""

    name: ClassVar[str] = "local"
    reference: ClassVar[str] = "paper, sec. V-A"
    cost: ClassVar[str] = "nothing"
    sharded: ClassVar[bool] = True
    deployable: ClassVar[bool] = True
    tested_model: ClassVar[str] = "local"

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model."""
        return {"theta": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere."""
        return {"theta": fed.train(self.models(state), t)}

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Nothing is sent."""
        return Traffic(down=0, up=0)
