"""The collaboration round: full gradients and their variance (paper, sec. IV-A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ucfl.federation.batches import passes

if TYPE_CHECKING:
    from ucfl.federation.engine import Federation


@dataclass(frozen=True)
class Gradients:
    """What users send in the collaboration round (paper, sec. IV-A).

    ``full`` [m, P] holds ∇ℓ(θ, D_i); ``variances`` [m] holds σ²_i (eq. 9), estimated over
    ``batches`` [m] disjoint batches of ``batch`` [m] examples.
    """

    full: Tensor
    variances: Tensor
    batch: Tensor
    batches: Tensor


def measure(fed: Federation, theta: Tensor, batch: float) -> Gradients:
    """Each user's full gradient at its row of Θ, and its variance, in one pass over the data.

    K = ⌊n_i / n_k⌋ disjoint random batches give the variance about the full gradient; what is
    left over counts towards the full gradient only.
    """
    sizes = fed.sizes
    n_k = torch.full_like(sizes, int(batch))
    if batch < 1:
        n_k = (sizes.double() * batch + 1e-9).floor().long()  # a third of 300 is 100
    n_k = torch.minimum(n_k.clamp(min=1), sizes)
    widest = int(n_k.max())
    at_once = max(1, fed.chunk * fed.training.batch // widest)
    parts = fed.chunks.over(
        lambda users: _measure_chunk(fed, theta, users, n_k[users], widest), at_once
    )
    full, variances = (torch.cat(part) for part in zip(*parts, strict=True))
    return Gradients(full, variances, n_k, sizes // n_k)


def _measure_chunk(
    fed: Federation, theta: Tensor, users: Tensor, n_k: Tensor, widest: int
) -> tuple[Tensor, Tensor]:
    cut, sizes = fed.rows.trainable, fed.sizes[users]
    weights, rest = theta[users, :cut], theta[users, cut:]
    full, mean = torch.zeros_like(weights), torch.zeros_like(weights)
    scatter = torch.zeros(len(users), dtype=torch.float64, device=fed.device)
    seen = torch.zeros_like(sizes)
    for step in fed.batches_of(users, 0, n_k, passes(sizes, n_k), widest):
        slope, _ = fed.gradient(weights, rest, step)
        here = step.count if step.idle is None else step.count * ~step.idle[:, 0]
        full += slope * (here.to(slope.dtype) / sizes)[:, None]
        # Welford's update of mean and scatter, by the batches of full length.
        whole = here == n_k
        seen += whole
        apart = slope - mean
        mean += apart * (whole.to(slope.dtype) / seen.clamp(min=1))[:, None]
        scatter += whole * (apart * (slope - mean)).sum(1, dtype=torch.float64)
    off = (mean - full).square().sum(1, dtype=torch.float64)
    return full, scatter / (sizes // n_k) + off
