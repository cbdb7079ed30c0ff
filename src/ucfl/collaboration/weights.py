"""Collaboration weights from gradients (paper, sec. IV-A)."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucfl.errors import UcflError

Array = TypeVar("Array", NDArray[Any], Tensor)

#: Parameters whose gradients are taken to float64 at a time.
BLOCK = 4096


def gradient_distances(gradients: Array) -> Array:
    """Δ_ij = ‖g_i − g_j‖² for all pairs, in float64.

    Distances do not change when the mean gradient is taken off first, and then
    ‖g_i‖² + ‖g_j‖² − 2 g_i·g_j loses no more than rounding of the largest distance. Parameters
    are taken in blocks: ten thousand users' gradients in float64 at once would fill a machine.
    """
    rows = torch.as_tensor(gradients)
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in rows.split(BLOCK, dim=1):
        centred = block.double()
        centred = centred - centred.mean(0)
        gram.addmm_(centred, centred.T)
    squares = gram.diagonal().clone()
    distances = gram.mul_(-2).add_(squares[:, None]).add_(squares).clamp_(min=0)
    distances = (distances + distances.T).div_(2).fill_diagonal_(0)
    return _like(gradients, distances)


def distances_between(rows: Tensor, others: Tensor) -> Tensor:
    """[q, m]: ‖g_i − h_j‖² of q rows and m others, in float64, as :func:`gradient_distances`."""
    found = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    for mine, theirs in zip(rows.split(BLOCK, dim=1), others.split(BLOCK, dim=1), strict=True):
        middle = theirs.double().mean(0)
        g, h = mine.double() - middle, theirs.double() - middle
        found += g.square().sum(1)[:, None] + h.square().sum(1) - 2 * g @ h.T
    return found.clamp(min=0)


def newcomer_weights(distances: Tensor, own: Tensor, variances: Tensor, sizes: Tensor) -> Tensor:
    """Rows of eq. 7 [q, m] for users that are not among the m: w_ij ∝ n_j exp(−Δ_ij / (2 σ_i σ_j)).

    ``own`` [q] are their variances. Who has none, or is so far from everyone that no weight is
    left, learns from the nearest one.
    """
    widths = 2 * own.double().sqrt()[:, None] * variances.double().sqrt()
    found = kernel_weights(distances, widths, sizes)
    nearest = torch.nn.functional.one_hot(distances.argmin(1), len(sizes)).double()
    return torch.where(found.isnan().any(1, keepdim=True), nearest, found)


def collaboration_weights(gradients: Array, variances: Array, sizes: Array) -> Array:
    """W of eq. 7: w_ij ∝ n_j exp(−Δ_ij / (2 σ_i σ_j)), rows summing to one.

    The printed denominator reads σ_i σ_j where the sum runs over j'; it must be σ_i σ_j'. The
    factor 1/n_i cancels. Computed in the log domain and float64, so that an exponent of −10⁵
    underflows only where its weight is truly nothing.

    A variance of zero is the paper's limit of infinite local data: the user learns alone, but for
    users whose gradient equals its own.

    Args:
        gradients: [m, P], everyone's gradient at the same θ⁰.
        variances: [m], σ²_i of eq. 9.
        sizes: [m], how many examples each user has.

    Returns:
        W [m, m], as the kind of array that was given.

    Examples:
        >>> import numpy as np
        >>> gradients = np.array([[1.0, 0.0], [1.0, 0.0], [9.0, 0.0]])  # users 0 and 1 are alike
        >>> collaboration_weights(gradients, np.ones(3), np.array([10, 30, 10])).round(2)
        array([[0.25, 0.75, 0.  ],
               [0.25, 0.75, 0.  ],
               [0.  , 0.  , 1.  ]])
    """
    distances = gradient_distances(gradients)
    return weights_from_distances(distances, variances, sizes)


def weights_from_distances(distances: Array, variances: Array, sizes: Array) -> Array:
    """Eq. 7 for distances Δ that are known."""
    delta, variance, size = (_double(a) for a in (distances, variances, sizes))
    if not torch.isfinite(delta).all():
        raise UcflError("gradients hold NaN or infinite values; lower the learning rate or check "
                        "the data.")  # fmt: skip
    if not (torch.isfinite(variance).all() and (variance >= 0).all()):
        raise UcflError("gradient variances must be finite and not negative.")
    if not (size > 0).all():
        raise UcflError("every user needs at least one example.")
    sigma = variance.sqrt()
    return _like(distances, kernel_weights(delta, 2 * sigma[:, None] * sigma[None, :], size))


def kernel_weights(distances: Tensor, widths: Tensor, sizes: Tensor) -> Tensor:
    """w_ij ∝ n_j exp(−Δ_ij / b_ij), rows summing to one, in the log domain and float64."""
    exponent = torch.where(distances == 0, 0.0, -distances / widths)
    return torch.softmax(sizes.double().log() + exponent, dim=1)


def _double(array: NDArray[Any] | Tensor) -> Tensor:
    return torch.as_tensor(array).double()


def _like(given: Array, result: Tensor) -> Array:
    """The result as the kind of array that was given."""
    return result if isinstance(given, Tensor) else np.asarray(result.numpy())
