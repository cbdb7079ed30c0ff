"""Does the collaboration round tell users apart? In numbers, and in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Under this, the gradients' spread is hardly more than their noise. Users that were truly alike
#: gave 1.03 to 1.16, rotated or relabelled groups 2.4 and more (docs/equations.md).
CLEAR_SPREAD = 1.5
#: From here on, users fall into groups rather than differ by degrees.
CLEAR_SILHOUETTE = 0.25


def noise_floor(variances: Tensor, batches: Tensor) -> Tensor:
    """s_i = σ²_i / (K_i − 1): the variance of user i's full gradient; NaN where K_i = 1.

    A batch of n_i / K examples has K times the variance of the full gradient, and eq. 9 measures
    it about the mean of its own K batches, which takes away one part in K.
    """
    return torch.where(batches > 1, variances.double() / (batches - 1), torch.nan)


def spread(distances: Tensor, floor: Tensor) -> float:
    """Mean Δ_ij over pairs of users, in units of what noise alone gives, s_i + s_j.

    About 1 where all users draw from one distribution; NaN where the noise is not known.
    """
    pairs = ~torch.eye(len(floor), dtype=torch.bool, device=floor.device)
    known = pairs & floor.isfinite()[:, None] & floor.isfinite()[None, :]
    if not known.any():
        return float("nan")
    noise = (floor[:, None] + floor[None, :])[known].mean()
    return float(distances[known].mean() / noise)


@dataclass(frozen=True)
class Diagnosis:
    """What the collaboration round found: spread, and the best k with its silhouette.

    Where the spread was not kept (None), it speaks of W alone.
    """

    users: int
    spread: float | None
    count: int
    silhouette: float

    @property
    def separates(self) -> bool:
        """Whether gradients differ between users by clearly more than their noise."""
        return self.spread is None or not self.spread < CLEAR_SPREAD

    @property
    def grouped(self) -> bool:
        """Whether users fall into groups rather than differ by degrees, or hardly at all."""
        return self.separates and self.silhouette >= CLEAR_SILHOUETTE

    def __str__(self) -> str:
        if self.users == 1:
            return "One user: there is nobody to learn from."
        if not self.separates:
            return (
                f"The gradients hardly tell users apart: they differ {self.spread:.2f} times as "
                "much as noise alone would make them. Either the users are alike, and FedAvg "
                "serves them well, or the first weights hide the difference: use initialisation "
                "'he-glorot', or more data per user."
            )
        if self.spread is None and self.count == 1:
            return "The rows of W do not fall into groups: one stream is suggested."
        if self.spread is None:
            degrees, groups = "The rows of W differ", "The rows of W"
        else:
            known = (
                f"differ {self.spread:.1f} times as much as noise alone would make them"
                if self.spread == self.spread
                else "differ, but too few batches were drawn to say how far beyond noise"
            )
            degrees, groups = f"Users' gradients {known},", f"Users' gradients {known} and"
        if not self.grouped:
            return (
                f"{degrees} by degrees rather than in groups (silhouette "
                f"{self.silhouette:.2f} at best, for k = {self.count}): every stream that is "
                "saved costs some personalisation."
            )
        return (
            f"{groups} fall into groups: the silhouette suggests "
            f"k = {self.count} streams ({self.silhouette:.2f})."
        )
