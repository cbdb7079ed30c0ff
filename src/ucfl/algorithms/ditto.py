"""Ditto: a personal model beside the global one, held near it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Federation, Pull
from ucfl.options import NotNegative
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Ditto(Algorithm):
    """min_v f_i(v) + λ/2 ‖v − θ_global‖², solved beside FedAvg (λ is ``strength``)."""

    strength: NotNegative = 0.1

    name: ClassVar[str] = "ditto"
    reference: ClassVar[str] = "Li et al., ICML 2021"
    cost: ClassVar[str] = "1 down, 1 up, twice the work"
    sharded: ClassVar[bool] = True
    deployable: ClassVar[bool] = True
    of_users: ClassVar[frozenset[str]] = frozenset({"theta", "personal"})
    tested_model: ClassVar[str] = "personalised"

    def start(self, fed: Federation) -> State:
        """The personal models start from the global one."""
        return {"theta": fed.initial(), "personal": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """FedAvg's round, and a local pass of every personal model towards what it received."""
        theta, personal = tensor(state, "theta"), tensor(state, "personal")
        return {
            "theta": self.mixed(fed, state, fed.train(theta, t), theta),
            "personal": fed.train(personal, t, Pull(self.strength, towards=theta)),
        }

    def rule(self, fed: Federation, state: State) -> Mixing:
        """The global models' average."""
        return Mixing.average(fed.sizes).among(fed.present)

    def models(self, state: State) -> Tensor:
        """The personal models."""
        return tensor(state, "personal")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages, twice its work."""
        return Traffic(down=1, up=1, work=2)
