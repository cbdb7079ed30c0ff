"""FedFomo: every user weights the models it receives by how much they help on its own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing, distances_between
from ucfl.errors import UcflError
from ucfl.federation import Federation, draws
from ucfl.options import Share
from ucfl.wireless import Traffic

#: A weight before normalisation, where a user's own model has an infinite loss.
MOST = 1e30


@dataclass(frozen=True)
class FedFomo(Algorithm):
    """w_ij ∝ max(0, (L_i(θ_i) − L_i(θ_j)) / ‖θ_j − θ_i‖), θ_i ← θ_i + Σ_j w_ij (θ_j − θ_i).

    θ_i is the user's model before the round, θ_j are the local models after it, L_i is the loss on
    the user's validation data. A user receives ``received`` models (0: all): with probability
    ``exploration`` any, else those that helped most so far.
    """

    received: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    exploration: Share = 0.3

    name: ClassVar[str] = "fedfomo"
    reference: ClassVar[str] = "Zhang et al., ICLR 2021"
    cost: ClassVar[str] = "m down, 1 up"
    tested_model: ClassVar[str] = "personalised"
    sharded: ClassVar[bool] = False

    def check(self, fed: Federation) -> None:
        """Weights need validation data."""
        if not (fed.users.validation.sizes > 0).any():
            raise UcflError("FedFomo weighs models by validation loss, and no user has such data.")

    def start(self, fed: Federation) -> State:
        """Nobody has helped anybody yet."""
        affinity = torch.zeros(fed.m, fed.m, dtype=torch.float64, device=fed.device)
        return {"theta": fed.initial(), "affinity": affinity, "weights": affinity}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere, exchange, weigh, walk."""
        before, affinity = tensor(state, "theta"), tensor(state, "affinity")
        after = fed.train(before, t)
        gain = fed.loss(before)[:, None] - fed.losses(after).T  # [user, model]
        distance = distances_between(before, after).sqrt().clamp(min=1e-12)
        weights = (gain.double() / distance).nan_to_num(0).clamp(0, MOST)
        weights = weights * self.offers(fed, affinity, t)
        if fed.present is not None:  # nobody receives from or for absent users
            weights = weights * fed.present * fed.present[:, None]
        total = weights.sum(1, keepdim=True)
        # Who finds nothing better, or cannot tell, keeps what it trained.
        own = torch.eye(fed.m, dtype=weights.dtype, device=fed.device)
        weights = torch.where(total > 0, weights / total.clamp(min=1e-300), own)
        everyone = torch.arange(fed.m, device=fed.device)
        theta = Mixing(weights, everyone).among(fed.present) @ after
        affinity = fed.kept(affinity + weights, affinity)
        return {"theta": theta, "affinity": affinity, "weights": weights}

    def offers(self, fed: Federation, affinity: Tensor, t: int) -> Tensor:
        """[m, m] mask of the models that each user receives; its own is always there."""
        own = torch.eye(fed.m, dtype=torch.bool, device=fed.device)
        if not 0 < self.received < fed.m:
            return torch.ones_like(own)
        ids = fed.users.ids
        chance = draws.uniform(fed.seed, t, ids[:, None], ids[None, :])
        explores = draws.uniform(fed.seed, t, ids, -1)[:, None] < self.exploration
        # Affinities first, chance between equals; or chance alone.
        rank = torch.where(explores, chance, affinity + 1e-9 * chance)
        if fed.present is not None:  # nobody asks for what is not trained now
            rank = rank.masked_fill(~fed.present, -torch.inf)
        rank = rank.masked_fill(own, torch.inf)
        chosen = rank.topk(self.received + 1, dim=1).indices
        return torch.zeros_like(own).scatter(1, chosen, True)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Aggregation is at the users, so every model that anyone receives is broadcast."""
        models = fed.m if fed.here is None else len(fed.here)
        return Traffic(down=models, up=1, work=1 + (models + 1) * fed.forward_work("validation"))
