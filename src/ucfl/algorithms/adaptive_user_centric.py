"""Adaptive user-centric: users try several mixtures of the same models, and keep what serves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing, choose_streams, gradient_distances, noise_floor
from ucfl.collaboration.candidates import NAMES, candidate, common_choice, kernel, own_choices
from ucfl.collaboration.streams import MOST_STREAMS
from ucfl.errors import UcflError
from ucfl.federation import Federation, draws
from ucfl.wireless import Traffic

#: Rounds in which candidates are tried; close together first, since models part early.
CALIBRATIONS = (3, 6, 10, 15, 25, 40, 60)
#: Equal outcomes in a row after which nothing is tried any more.
STABLE = 3
#: The width that training starts with, and the one whose weights are grouped into streams
#: (that of the paper's n_k = N/3).
FIRST, PLANNED = "h=4", 2.0


@dataclass(frozen=True)
class AdaptiveUserCentric(Algorithm):
    """θ_i ← Σ_j w_ij θ_j, w the candidate with the lowest validation loss of what it mixes now.

    Candidates come free from one collaboration round: eq. 7's kernel at six widths, FedAvg inside
    the streams of the silhouette's plan, FedAvg, local. In calibration rounds the server sends all
    local models, users mix them in every way and report their validation losses. ``choice``: one
    for all, or everyone its own. ``voters``: the share of users that take part in a calibration.
    """

    choice: Literal["common", "own"] = "common"
    voters: float = 1.0

    name: ClassVar[str] = "adaptive-user-centric"
    reference: ClassVar[str] = "beyond the paper, docs/algorithms"
    cost: ClassVar[str] = "k down, 1 up; up to m down in 7 rounds; once: 1 down, 1 up"
    tested_model: ClassVar[str] = "aggregated"
    sharded: ClassVar[bool] = False

    def check(self, fed: Federation) -> None:
        """Candidates are told apart by validation loss."""
        if not 0 < self.voters <= 1:
            raise UcflError(f"voters is a share of the users above 0, up to 1, not {self.voters}.")
        if self.choice not in ("common", "own"):
            raise UcflError(f"choice is common or own, not {self.choice!r}.")

    def start(self, fed: Federation) -> State:
        """The collaboration round: distances, the noise floor, a plan of streams."""
        theta = fed.initial()
        found = fed.collaboration_round(theta)
        distances = gradient_distances(found.full).double()
        floor = noise_floor(found.variances, found.batches)
        known = floor[floor.isfinite()]
        floor = floor.nan_to_num(float(known.median()) if len(known) else 0.0)
        planned = kernel(distances, floor, fed.sizes, PLANNED)
        plan = choose_streams(planned, max_streams=min(fed.m, MOST_STREAMS), seed=fed.seed)
        first = torch.full((fed.m,), NAMES.index(FIRST), device=fed.device)
        return {
            "theta": theta,
            "distances": distances,
            "floor": floor,
            "streams": torch.from_numpy(plan.labels).to(fed.device),
            "choices": first,
            "stable": 0,
            "down": 0.0,
            "evaluated": 0.0,
        }

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere; try the candidates where it is time to; mix."""
        local = fed.train(self.models(state), t)
        choices, stable = tensor(state, "choices"), int(state["stable"])
        trying = fed.m > 1 and t in CALIBRATIONS and stable < STABLE
        if trying:
            fresh = self._calibrated(fed, state, local, t)
            stable = stable + 1 if torch.equal(fresh, choices) else 0
            choices = fresh
        mixing = self._mixing(fed, state, choices)
        if trying:
            # Everybody has all local models, and mixes them itself.
            mixing = Mixing(mixing.weights, torch.arange(fed.m, device=fed.device))
        alone = bool((choices == NAMES.index("local")).all()) and not trying
        return {
            **state,
            "theta": local if alone else mixing @ local,
            "choices": choices,
            "stable": stable,
            "down": 0.0 if alone else float(mixing.count),
            "evaluated": len(NAMES) * self.voters if trying else 0.0,
        }

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A broadcast per stream; in a calibration every local model, and forward passes."""
        down = float(state["down"])
        work = 1 + float(state["evaluated"]) * fed.forward_work("validation")
        return Traffic(down=down, up=1 if down else 0, work=work)

    def start_traffic(self, fed: Federation, state: State) -> Traffic:
        """As the paper's method: θ⁰ down, a gradient up, one pass over the data."""
        return Traffic(down=1, up=1, work=1 / fed.training.epochs)

    def describe(self, state: State) -> str:
        """How many streams the plan has."""
        streams = int(tensor(state, "streams").max()) + 1
        return f"candidates are {', '.join(NAMES)}; the plan has k = {streams} streams."

    def _weights(self, fed: Federation, state: State, name: str) -> Tensor:
        distances, floor = tensor(state, "distances"), tensor(state, "floor")
        return candidate(name, distances, floor, fed.sizes, tensor(state, "streams"))

    def _mixing(self, fed: Federation, state: State, choices: Tensor) -> Mixing:
        """Every user's row of the candidate that it has chosen; equal rows are one stream."""
        rows = torch.zeros(fed.m, fed.m, dtype=torch.float64, device=fed.device)
        for number in choices.unique().tolist():
            chosen = choices == number
            rows[chosen] = self._weights(fed, state, NAMES[number])[chosen]
        streams, labels = rows.unique(dim=0, return_inverse=True)
        return Mixing(streams, labels)

    def _calibrated(self, fed: Federation, state: State, local: Tensor, t: int) -> Tensor:
        """Everyone's choice after trying all candidates on the same local models."""
        losses = torch.stack(
            [
                fed.example_losses(self._weights(fed, state, name).to(local.dtype) @ local)
                for name in NAMES
            ]
        ).double()
        if self.voters < 1:
            ranks = draws.uniform(fed.seed, t, fed.users.ids, -9).argsort().argsort()
            silent = ranks >= max(1, math.ceil(self.voters * fed.m))
            losses[:, silent] = torch.nan
        choices = tensor(state, "choices")
        if self.choice == "own":
            return own_choices(losses, choices, tensor(state, "streams"))
        best = common_choice(losses.nanmean(2), int(choices[0]))
        return torch.full_like(choices, best)
