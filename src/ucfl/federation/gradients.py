"""The collaboration round: full gradients and their variance (paper, sec. IV-A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ucfl.execution import Tensors
from ucfl.federation.divergence import check_finite
from ucfl.federation.model import LocalModel
from ucfl.federation.schedule import Batch, Plan

if TYPE_CHECKING:
    from ucfl.federation.federation import Federation


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


@dataclass(frozen=True)
class Moments:
    """One batch's part in a user's full gradient, and in the mean and scatter of its batches.

    Welford's update: a batch of full length with gradient g moves the mean μ of those before by
    δ / k with δ = g − μ, and adds ⟨δ, g − μ'⟩ to the scatter. Shorter ones count in the full one.
    """

    model: LocalModel

    def __call__(
        self,
        state: tuple[Tensor, ...],
        batch: Batch,
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """The sums with the batch in them."""
        full, mean, scatter, seen = state
        weights, rest, size, n_k = cast("tuple[Tensor, Tensor, Tensor, Tensor]", constants)
        found, _ = self.model.gradient(weights, rest, batch)
        full = full + found * (batch.count.to(found.dtype) / size)
        whole = batch.count == n_k
        seen = seen + whole
        apart = found - mean
        mean = mean + apart * (whole.to(found.dtype) / seen.clamp(min=1))
        scatter = scatter + whole * (apart * (found - mean)).sum(dtype=torch.float64)
        return full, mean, scatter, seen


def measure(fed: Federation, theta: Tensor, batch: float) -> Gradients:
    """Each user's full gradient at its row of Θ, and its variance, in one pass over the data.

    K = ⌊n_i / n_k⌋ disjoint random batches give the variance about the full gradient; what is
    left over counts towards the full gradient only.
    """
    sizes, cut = fed.sizes, fed.rows.trainable
    n_k = torch.full_like(sizes, int(batch))
    if batch < 1:
        n_k = (sizes.double() * batch + 1e-9).floor().long()  # a third of 300 is 100
    n_k = torch.minimum(n_k.clamp(min=1), sizes)
    plan = Plan.of(sizes, n_k, None, last="keep", keyed=fed.model.keyed)
    weights, rest = theta[:, :cut].contiguous(), theta[:, cut:].contiguous()
    zeros, scatter = torch.zeros_like(weights), torch.zeros_like(sizes, dtype=torch.float64)
    full, mean, scatter, _ = fed.executor.iterate(
        Moments(fed.model),
        (zeros, zeros, scatter, torch.zeros_like(sizes)),
        plan.drawn(fed.users, fed.executor, fed.seed, 0),
        constants=(weights, rest, sizes, n_k),
        load=max(1.0, plan.cut.width / fed.training.batch),
    )
    check_finite(fed, (zeros,), (full,), 0)
    off = (mean - full).square().sum(1, dtype=torch.float64)
    return Gradients(full, scatter / (sizes // n_k) + off, n_k, sizes // n_k)
