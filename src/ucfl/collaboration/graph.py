"""Collaboration weights from a quadratic programme over the simplex (pFedGraph)."""

from __future__ import annotations

import torch
from torch import Tensor

from ucfl.collaboration.weights import BLOCK


def graph_weights(similarity: Tensor, sizes: Tensor, strength: float) -> Tensor:
    """Row i minimises strength · ‖w − p‖² − Σ_j w_j s_ij over the simplex, with p_j = n_j / Σ n.

    Completing the square makes that the projection of p + s_i / (2 strength) onto the simplex.
    """
    shares = sizes.double() / sizes.sum()
    return onto_simplex(shares + similarity.double() / (2 * strength))


def onto_simplex(points: Tensor) -> Tensor:
    """Each row's nearest point with entries that are not negative and add up to 1.

    It is max(x − τ, 0), where τ makes the sum 1: found by sorting (Held et al., 1974).
    """
    points = points - points.amax(-1, keepdim=True)  # changes nothing but rounding
    ordered = points.sort(dim=-1, descending=True).values
    counts = torch.arange(1, points.shape[-1] + 1, dtype=points.dtype, device=points.device)
    levels = (ordered.cumsum(-1) - 1) / counts
    kept = (ordered > levels).sum(-1, keepdim=True)
    return (points - levels.gather(-1, kept - 1)).clamp(min=0)


def cosines(rows: Tensor) -> Tensor:
    """[m, m]: the cosine of the angle between all pairs of rows, in float64; 0 with a zero row.

    Columns are taken in blocks, as in :func:`~ucfl.collaboration.weights.gradient_distances`.
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in rows.split(BLOCK, dim=1):
        scaled = block.double() / lengths.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        gram.addmm_(scaled, scaled.T)
    return gram.clamp_(-1, 1)
