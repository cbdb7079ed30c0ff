"""FedAMP: every user is pulled to a mixture of models, the nearer ones weighing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing, gradient_distances
from ucfl.federation import Federation, Pull
from ucfl.options import NotNegative, Positive
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FedAMP(Algorithm):
    """u_i = Σ_j ξ_ij θ_j;  θ_i ← argmin f_i(θ) + λ/(2α) ‖θ − u_i‖².

    ξ_ij = α A'(‖θ_i − θ_j‖²) for j ≠ i, with A(x) = 1 − exp(−x/σ), so A'(x) = exp(−x/σ)/σ, and
    ξ_ii = 1 − Σ_{j≠i} ξ_ij. The publication asks for α so small that no weight is negative; where
    others' weights add up to more than 1, they are scaled to 1 here. λ is ``strength``. Training
    starts from the user's own model. ``sigma`` is a squared distance between models: what suits
    depends on the model, the rate and the number of steps.
    """

    strength: NotNegative = 1.0
    alpha: Positive = 10.0
    sigma: Positive = 10.0

    name: ClassVar[str] = "fedamp"
    reference: ClassVar[str] = "Huang et al., AAAI 2021"
    cost: ClassVar[str] = "m down, 1 up"
    tested_model: ClassVar[str] = "personalised"
    sharded: ClassVar[bool] = False

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model."""
        own = torch.eye(fed.m, dtype=torch.float64, device=fed.device)
        return {"theta": fed.initial(), "weights": own, "received": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Mix the models as they are, then train each one towards its mixture."""
        theta = self.models(state)
        had = tensor(state, "received") if "received" in state else theta  # not in older states
        known = fed.uplink(theta, had)
        weights = self.attention(fed, known)
        mixing = Mixing(weights, torch.arange(fed.m, device=fed.device)).among(fed.present)
        mixed = fed.downlink(mixing, mixing @ known, had)
        trained = fed.train(theta, t, Pull(self.strength / self.alpha, towards=mixed))
        return {
            "theta": trained,
            "weights": fed.kept(weights, tensor(state, "weights")),
            "received": fed.kept(mixed, had),
        }

    def attention(self, fed: Federation, theta: Tensor) -> Tensor:
        """ξ [m, m] of the users that are present; absent ones have their own model alone."""
        apart = gradient_distances(theta[:, : fed.rows.trainable])
        others = self.alpha / self.sigma * torch.exp(-apart / self.sigma)
        others = others.fill_diagonal_(0)
        if fed.present is not None:
            others = others * fed.present * fed.present[:, None]
        others = others / others.sum(1, keepdim=True).clamp(min=1)
        return others + torch.diag((1 - others.sum(1)).clamp(min=0))

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A mixture for each user."""
        return Traffic(down=fed.m if fed.here is None else len(fed.here), up=1)
