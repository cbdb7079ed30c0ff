"""How well outputs fit targets: sums over a user's examples, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ucfl.federation.losses import alike, position_losses, positions

#: Of confidences in [0, 1], for the calibration error.
BINS = 15


def mean(sums: Tensor, count: Tensor) -> Tensor:
    """The mean over examples of what is one number for each."""
    return sums[..., 0] / count


def ratio(sums: Tensor, count: Tensor) -> Tensor:
    """The first sum over the second one."""
    return sums[..., 0] / sums[..., 1]


@dataclass(frozen=True)
class Metric:
    """A number for each user, made of sums over its examples.

    ``statistics(outputs, targets)`` gives a number [n] or a row [n, s] for each example;
    ``value(sums [..., s], count [...])`` makes a user's number of their sums and of how many
    examples there are, by default their mean. ``percent``: it is a share, shown as percent.
    """

    statistics: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Tensor, Tensor], Tensor] = mean
    more_is_better: bool = True
    percent: bool = False


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the class with the highest output is the target, else 0; NaN where an output is NaN.

    (PyTorch's argmax takes NaN for the highest, so that its class would be the answer.)
    """
    right = (outputs.argmax(-1) == targets).to(outputs.dtype)
    return torch.where(outputs.isnan().any(-1), torch.nan, right)


def _correct_by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n, 2 classes]: right answers of each class, and examples of each."""
    of_class = targets[:, None] == torch.arange(outputs.shape[-1], device=outputs.device)
    right = torch.where(of_class, correct(outputs, targets)[:, None], 0)
    return torch.cat([right, of_class.to(outputs.dtype)], dim=-1)


def _mean_of_classes(sums: Tensor, count: Tensor) -> Tensor:
    right, examples = sums.tensor_split(2, dim=-1)
    return (right / examples).nanmean(-1) + 0 * right.sum(-1)  # a model of NaN has no accuracy


def _confidences(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n, BINS]: confidence less correctness, in the bin of the confidence."""
    confidence = outputs.softmax(-1).amax(-1)
    bin_of = (confidence * BINS).floor().clamp(max=BINS - 1)
    mine = bin_of[:, None] == torch.arange(BINS, device=outputs.device)
    gap = confidence - correct(outputs, targets)
    return torch.where(mine | gap.isnan()[:, None], gap[:, None], 0)


def _expected_gap(sums: Tensor, count: Tensor) -> Tensor:
    return sums.abs().sum(-1) / count


def _right_positions(outputs: Tensor, targets: Tensor) -> Tensor:
    counted = positions(targets)
    right = torch.where(counted, correct(outputs, targets), 0)
    return torch.stack([right.sum(-1), counted.sum(-1)], dim=-1)


def _losses_of_positions(outputs: Tensor, targets: Tensor) -> Tensor:
    found, counted = position_losses(outputs, targets), positions(targets)
    return torch.stack([found.sum(-1), counted.sum(-1)], dim=-1)


def _perplexity(sums: Tensor, count: Tensor) -> Tensor:
    return ratio(sums, count).exp()


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n, 1 + 2 d]: the squared error, and each of d numbers and its square."""
    error = (alike(outputs, targets) - targets).square().reshape(len(targets), -1)
    numbers = targets.to(torch.float64).reshape(len(targets), -1)
    return torch.cat([error.sum(1, keepdim=True), numbers, numbers.square()], dim=1)


def _explained(sums: Tensor, count: Tensor) -> Tensor:
    numbers, squares = sums[..., 1:].tensor_split(2, dim=-1)
    scatter = (squares - numbers.square() / count[..., None]).sum(-1)
    # Up to rounding: of a user whose targets are all the same there is nothing to explain.
    known = scatter > 1e-12 * squares.sum(-1)
    return torch.where(known, 1 - sums[..., 0] / scatter, torch.nan)


#: The share of examples whose class has the highest output.
ACCURACY = Metric(correct, percent=True)
#: The mean over a user's classes of the share that is right (its recall).
BALANCED_ACCURACY = Metric(_correct_by_class, _mean_of_classes, percent=True)
#: Σ_b |Σ_{i in b} (confidence − right)| / n over bins of the confidence (Guo et al., ICML 2017).
CALIBRATION_ERROR = Metric(_confidences, _expected_gap, more_is_better=False, percent=True)
#: The share of positions whose class has the highest output.
POSITION_ACCURACY = Metric(_right_positions, ratio, percent=True)
#: The mean cross-entropy of a position.
POSITION_LOSS = Metric(_losses_of_positions, ratio, more_is_better=False)
#: exp of it.
PERPLEXITY = Metric(_losses_of_positions, _perplexity, more_is_better=False)
#: R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)², with the mean of the user's own targets.
R2 = Metric(_squares, _explained)
