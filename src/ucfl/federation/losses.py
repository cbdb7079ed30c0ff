"""Losses, example by example, and what several models predict together."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor

from ucfl.users import IGNORED


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(y − ŷ)², the mean over an example's numbers."""
    return _per_example((alike(outputs, targets) - targets).square())


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """|y − ŷ|, the mean over an example's numbers."""
    return _per_example((alike(outputs, targets) - targets).abs())


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy over a sequence's positions [n, length] that count."""
    return position_losses(outputs, targets).sum(-1) / positions(targets).sum(-1).clamp(min=1)


def position_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n, length]: the cross-entropy at each position; 0 where it does not count."""
    log_likelihood = outputs.log_softmax(-1)
    chosen = log_likelihood.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return torch.where(positions(targets), -chosen, 0)


def positions(targets: Tensor) -> Tensor:
    """Which positions of sequences count."""
    return targets != IGNORED


def alike(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs in the shape of the targets: a model of one number gives [n, 1] or [n]."""
    return outputs.reshape(targets.shape)


def _per_example(each: Tensor) -> Tensor:
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def mixture_of_classes(outputs: Tensor, log_weights: Tensor) -> Tensor:
    """log Σ_k w_k softmax(outputs_k): the logarithm of the mixture's probabilities."""
    return torch.logsumexp(_over(log_weights, outputs) + outputs.log_softmax(-1), dim=0)


def mixture_of_means(outputs: Tensor, log_weights: Tensor) -> Tensor:
    """Σ_k w_k outputs_k."""
    return (_over(log_weights, outputs).exp() * outputs).sum(0)


def _over(weights: Tensor, outputs: Tensor) -> Tensor:
    """Weights [K, n] for outputs [K, n, ...]."""
    return weights.reshape(*weights.shape, *[1] * (outputs.dim() - weights.dim()))
