"""Class prototypes: mean features of users' examples, class by class, in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ucfl.federation.evaluation import mapped
from ucfl.federation.model import LocalModel
from ucfl.users import Examples

if TYPE_CHECKING:
    from ucfl.federation.federation import Federation

#: Numbers have no classes: they are put into so many bins, at the users' mean quantiles.
BINS = 10


@dataclass(frozen=True)
class Prototypes:
    """Features of each user's training examples, class by class.

    ``means`` [m, C, F] are mean features, ``variances`` [m, C] the variance of single examples
    about them, summed over features (0 with fewer than two examples), ``counts`` [m, C] how many
    examples there are. All in float64.
    """

    means: Tensor
    variances: Tensor
    counts: Tensor

    @property
    def numbers(self) -> int:
        """How many numbers a user sends of them (quantiles for bins of numbers are more)."""
        return self.means[0].numel() + self.variances[0].numel() + self.counts[0].numel()


@dataclass(frozen=True)
class ClassSums:
    """Counts [C], sums [C, F] and sums of squares [C] of one user's features.

    ``largest``: features longer than that are shortened to it (None: as they are).
    """

    model: LocalModel
    classes: int
    largest: float | None

    def __call__(self, row: Tensor, inputs: Tensor, kinds: Tensor) -> tuple[Tensor, ...]:
        """Of some examples; those of kind -1 do not count."""
        features = self.model.features(row, inputs, kinds.dim() - 1).to(torch.float64)
        features, kinds = features.flatten(0, -2), kinds.flatten()
        # Not a product with zero: what a model makes of padding may be no number.
        features = torch.where((kinds >= 0)[:, None], features, 0)
        if self.largest is not None:
            lengths = features.norm(dim=1, keepdim=True)
            features = features * (self.largest / lengths.clamp(min=self.largest))
        own = torch.arange(self.classes, device=kinds.device) == kinds[:, None]
        member = own.to(torch.float64).T
        return member.sum(1), member @ features, member @ features.square().sum(1)


def measure(
    fed: Federation,
    theta: Tensor,
    largest: float | None = None,
    like: Federation | None = None,
) -> Prototypes:
    """Prototypes of users' training examples, each by the model in its row of Θ.

    Bins of numbers are those of the users of ``like`` (None: of these).
    """
    data = fed.users.train
    classes, kinds = fed.users.classes, data.targets
    if not classes:
        classes, kinds = BINS, torch.bucketize(_first(data), _edges(like or fed))
    fed.model.observe(data.inputs[0, :1])
    kinds = torch.where(_wide(data.real, kinds), kinds, -1)
    kinds = torch.where(kinds >= 0, kinds, -1)  # positions of a sequence that do not count
    function = ClassSums(fed.model, classes, largest)
    blocks = mapped(fed, function, theta, data, data.inputs, kinds, per_example=False)
    counts, sums, squares = (sum(parts[1:], parts[0]) for parts in zip(*blocks, strict=True))
    means = sums / counts.clamp(min=1)[..., None]
    scatter = squares - counts * means.square().sum(2)
    variances = torch.where(counts > 1, scatter.clamp(min=0) / (counts - 1).clamp(min=1), 0)
    return Prototypes(means, variances, counts)


def _first(data: Examples) -> Tensor:
    """[m, n]: the (first) number of each example."""
    return (
        data.targets.double().flatten(2)[..., 0]
        if data.targets.dim() > 2
        else data.targets.double()
    )


def _edges(fed: Federation) -> Tensor:
    """[BINS - 1]: means of users' quantiles."""
    data = fed.users.train
    first = _first(data)
    levels = torch.linspace(0, 1, BINS + 1, dtype=torch.float64, device=first.device)[1:-1]
    own = torch.where(data.real, first, torch.nan).nanquantile(levels, dim=1).nan_to_num(0.0).T
    sizes = fed.gathered(data.sizes.double())
    return (fed.gathered(own.contiguous()) * sizes[:, None]).sum(0) / sizes.sum().clamp(min=1)


def _wide(real: Tensor, kinds: Tensor) -> Tensor:
    """[m, n] as wide as kinds of every position."""
    return real.view(*real.shape, *[1] * (kinds.dim() - 2)).expand_as(kinds)
