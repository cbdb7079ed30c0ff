"""pFedGraph: who learns from whom is found anew in every round, by a quadratic programme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing, cosines, graph_weights
from ucfl.errors import UcflError
from ucfl.execution import Tensors
from ucfl.federation import Federation
from ucfl.federation.local import Gradient
from ucfl.federation.optimisers import OPTIMISERS, Optimiser, Rates
from ucfl.options import NotNegative, Positive
from ucfl.wireless import Traffic

#: Updates with a larger cosine similarity count as equal, as in the official code.
ALIKE = 0.9


@dataclass(frozen=True)
class Aligned:
    """A step of the optimiser along ∇ℓ(θ) − λ ∇cos(θ, u). The state is θ, buffers, u, its own."""

    optimiser: Optimiser

    def __call__(
        self,
        gradient: Gradient,
        number: Tensor,
        state: tuple[Tensor, ...],
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """∇cos(θ, u) = (u/‖u‖ − cos(θ, u) θ/‖θ‖) / ‖θ‖."""
        weights, rest, towards, *own = state
        lr, momentum, strength, *decay = hyper
        along, rest = gradient(weights, rest)
        least = torch.finfo(weights.dtype).tiny
        length = weights.square().sum().sqrt().clamp(min=least)
        here = weights / length
        there = towards / towards.square().sum().sqrt().clamp(min=least)
        along = along - strength * (there - (here * there).sum() * here) / length
        rates = Rates(lr, momentum, decay[0] if decay else None)
        weights, own_now = self.optimiser.update(along, weights, tuple(own), rates)
        return weights, rest, towards, *own_now


@dataclass(frozen=True)
class PFedGraph(Algorithm):
    """w_i = argmin over the simplex of α ‖w − p‖² − Σ_j w_j cos(Δ_i, Δ_j);  u_i = Σ_j w_ij θ_j.

    Δ_j = θ_j − θ⁰ is what user j's model has moved by, p_j = n_j / Σ n. Users train from u_i on
    f_i(θ) − λ cos(θ, u_i); λ is ``strength``. ``tested``: u_i, or the model after that training.
    """

    alpha: Positive = 0.8
    strength: NotNegative = 0.01
    tested: Literal["aggregated", "local"] = "aggregated"

    name: ClassVar[str] = "pfedgraph"
    reference: ClassVar[str] = "Ye et al., ICML 2023"
    cost: ClassVar[str] = "m down, 1 up"
    sharded: ClassVar[bool] = False

    @property
    def tested_model(self) -> str:  # type: ignore[override]
        """As the hyper-parameter says."""
        return self.tested

    def check(self, fed: Federation) -> None:
        """Its local loop keeps no optimiser's state."""
        if fed.training.optimiser_state != "reset":
            raise UcflError("pFedGraph's users train with optimiser_state = reset.")

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model."""
        own = torch.eye(fed.m, dtype=torch.float64, device=fed.device)
        return {"theta": fed.initial(), "local": fed.initial(), "weights": own}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train near what was received, infer the graph, mix."""
        theta = tensor(state, "theta")
        local = self.trained(fed, theta, t)
        received = fed.uplink(local, theta)
        weights = self.graph(fed, received)
        mixing = Mixing(weights, torch.arange(fed.m, device=fed.device)).among(fed.present)
        return {
            "theta": fed.downlink(mixing, mixing @ received, theta),
            "local": fed.kept(local, tensor(state, "local")),
            "weights": fed.kept(weights, tensor(state, "weights")),
        }

    def trained(self, fed: Federation, theta: Tensor, t: int) -> Tensor:
        """Local training from Θ, held in the direction of Θ."""
        training, optimiser = fed.training, OPTIMISERS[fed.training.optimiser]
        weights, rest = fed.parts(theta)
        decay = [training.weight_decay] if training.weight_decay else []
        weights, rest, *_ = fed.iterate(
            Aligned(optimiser),
            (weights, rest, weights, *optimiser.start(weights)),
            t,
            training,
            hyper=(training.rate(t), training.momentum, self.strength, *decay),
        )
        return torch.cat([weights, rest], dim=1)

    def graph(self, fed: Federation, local: Tensor) -> Tensor:
        """W [m, m] of the users that are present; absent ones have their own model alone."""
        here = torch.arange(fed.m, device=fed.device) if fed.here is None else fed.here
        moved = (local - fed.initial())[here, : fed.rows.trainable]
        similarity = cosines(moved)
        similarity = torch.where(similarity > ALIKE, 1.0, similarity).fill_diagonal_(1)
        weights = torch.eye(fed.m, dtype=torch.float64, device=fed.device)
        weights[here[:, None], here] = graph_weights(similarity, fed.sizes[here], self.alpha)
        return weights

    def models(self, state: State) -> Tensor:
        """The mixtures, or the models that they were mixed from."""
        return tensor(state, "local" if self.tested == "local" else "theta")

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A mixture for each user."""
        return Traffic(down=fed.m if fed.here is None else len(fed.here), up=1)
