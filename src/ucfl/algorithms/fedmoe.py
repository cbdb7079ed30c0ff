"""Federated mixture of experts: shared experts, and a gate of its own for every user."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ucfl.algorithms.algorithm import Algorithm, State, mixture_of
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.federation import Architecture, Federation, reinitialised
from ucfl.federation.objective import Mixture
from ucfl.options import Copies
from ucfl.users import Split
from ucfl.wireless import Traffic


class MixtureOfExperts(nn.Module):
    """p(y | x) = Σ_k g_k(x) p(y | x; θ_k), with a linear gate g that starts even.

    ``mixture`` is the objective's: Σ_k g_k(x) ŷ(x; θ_k) where predictions are numbers.
    """

    def __init__(self, experts: list[nn.Module], features: int, mixture: Mixture) -> None:
        super().__init__()
        self.mixture = mixture
        self.experts = nn.ModuleList(experts)
        self.gate = nn.Linear(features, len(experts))
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of the classes, or numbers."""
        gate = self.gate(x.flatten(1)).log_softmax(-1)
        return self.mixture(torch.stack([expert(x) for expert in self.experts]), gate.T)


@dataclass(frozen=True)
class FedMoE(Algorithm):
    """Users train Σ_k g_k(x) p(y | x; θ_k): experts θ_k are averaged, gates g stay at home."""

    experts: Copies = 3

    name: ClassVar[str] = "fedmoe"
    reference: ClassVar[str] = "Reisser et al., arXiv 2107.06724, 2021"
    cost: ClassVar[str] = "K down, K up, K times the work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"

    def check(self, fed: Federation) -> None:
        """The gate is linear in the input; the objective says what experts predict together."""
        mixture_of(fed, self.name)
        if fed.users.train.inputs.dtype == torch.int64:
            raise UcflError("FedMoE's gate needs inputs that are images or real numbers.")

    def mixture(self, fed: Federation) -> nn.Module:
        """The model that users train; experts start apart, or they would stay equal."""
        experts = [fed.module(fed.initial()[0])]
        experts += [fed.module(reinitialised(fed, k)) for k in range(1, self.experts)]
        mixture = mixture_of(fed, self.name)
        model = MixtureOfExperts(experts, math.prod(fed.users.input_shape), mixture)
        return model.to(fed.rows.dtype)

    def federation(self, fed: Federation) -> Federation:
        """The same users with the mixture as their model."""
        return fed.with_model(self, self.mixture)

    def start(self, fed: Federation) -> State:
        """Everyone has the same experts and an even gate."""
        return {"theta": self.federation(fed).initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train all of it, average the experts."""
        mixture = self.federation(fed)
        theta = self.models(state)
        local = mixture.train(theta, t)
        experts = Mixing.by_part({~mixture.part("gate"): Mixing.average(fed.sizes)})
        return {"theta": mixture.exchange(experts.among(fed.present), local, theta)}

    def model(self, architecture: Architecture, state: State, user: int) -> nn.Module:
        """The experts and the user's own gate."""
        experts = [copy.deepcopy(architecture.template) for _ in range(self.experts)]
        features = math.prod(architecture.input_shape)
        model = MixtureOfExperts(experts, features, mixture_of(architecture, self.name))
        whole = replace(architecture, template=model.to(architecture.rows.dtype))
        return whole.module(self.models(state)[user])

    def metrics(self, fed: Federation, state: State, split: Split = "test") -> Mapping[str, Tensor]:
        """Of the mixture."""
        return self.federation(fed).metrics(self.models(state), split)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Every expert both ways, trained by all."""
        return Traffic(down=self.experts, up=self.experts, work=self.experts)
