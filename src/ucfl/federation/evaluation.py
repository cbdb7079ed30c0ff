"""How well models do: on their own user's examples, or on everyone's.

In a federation of those who are present, nobody looks at absent users' data or models: what would
be theirs is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor

from ucfl.errors import UcflError
from ucfl.execution import Function
from ucfl.federation.model import LocalModel
from ucfl.users import Examples

if TYPE_CHECKING:
    from ucfl.federation.federation import Federation

#: Examples that go through one model at a time, which bounds memory.
BLOCK = 1024

Score = Callable[[Tensor, Tensor], Tensor]


def correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where the class with the highest output is the label, else 0; NaN where an output is NaN.

    (PyTorch's argmax takes NaN for the highest, so that its class would be the answer.)
    """
    right = (outputs.argmax(-1) == labels).to(outputs.dtype)
    return torch.where(outputs.isnan().any(-1), torch.nan, right)


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """−log softmax(outputs)[label], example by example."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True)
class Outputs:
    """What one model says of some inputs."""

    model: LocalModel

    def __call__(self, row: Tensor, inputs: Tensor) -> tuple[Tensor]:
        """[examples, classes]."""
        return (self.model.outputs(row, inputs),)


@dataclass(frozen=True)
class Scores:
    """The score of one model on each of some examples."""

    model: LocalModel
    score: Score

    def __call__(self, row: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        """[examples]."""
        return (self.score(self.model.outputs(row, inputs), labels),)


@dataclass(frozen=True)
class Total:
    """The sum of one model's scores over the real ones of some examples."""

    scores: Scores

    def __call__(self, row: Tensor, inputs: Tensor, labels: Tensor, real: Tensor) -> tuple[Tensor]:
        """A number."""
        (each,) = self.scores(row, inputs, labels)
        # Not a product with zero: what a model makes of padding may be no number.
        return (torch.where(real, each, 0).sum(dtype=row.dtype),)


def mean_score(fed: Federation, theta: Tensor, data: Examples, score: Score) -> Tensor:
    """Each model's mean score over its own user's examples; NaN without examples."""
    totals = _mapped(
        fed, Total(Scores(fed.model, score)), theta, data, data.inputs, data.labels, data.real
    )
    return sum(totals, theta.new_zeros(fed.m)) / data.sizes


def outputs(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[m, n, classes]: what each user's model says of its own examples, padding included."""
    parts = [theta.new_zeros(fed.m, 0, fed.users.classes)]
    parts += _mapped(fed, Outputs(fed.model), theta, data, data.inputs)
    return torch.cat(parts, dim=1)[:, : data.labels.shape[1]]


def example_losses(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[m, n]: the loss of each user's model on each of its own examples; NaN for padding alone."""
    parts = [theta.new_zeros(fed.m, 0)]
    function = Scores(fed.model, cross_entropy)
    parts += _mapped(fed, function, theta, data, data.inputs, data.labels)
    each = torch.cat(parts, dim=1)[:, : data.labels.shape[1]]
    # A model that makes no number of an example fits it not at all.
    return torch.where(data.real, each.nan_to_num(torch.inf, posinf=torch.inf), torch.nan)


def _mapped(
    fed: Federation, function: Function, theta: Tensor, data: Examples, *examples: Tensor
) -> Iterator[Tensor]:
    """A function of everyone's row and examples [m, n, ...], block by block.

    The held-out splits are filled up to the longer one of them, so that they have equal shapes.
    """
    length, here = data.labels.shape[1], fed.here
    users = slice(None) if here is None else here if len(here) else slice(1)  # for the shapes
    held_out = max(fed.users.validation.labels.shape[1], fed.users.test.labels.shape[1])
    least = min(BLOCK, held_out) if length <= held_out else 0
    for start in range(0, length, BLOCK):
        block = tuple(longer(each[users, start : start + BLOCK], least) for each in examples)
        lengths = (data.sizes[users] - start).clamp(min=0)
        (found,) = fed.executor.map(function, theta[users], examples=block, lengths=lengths)
        yield found if here is None else _among(found, here, fed.m)


def _among(rows: Tensor, here: Tensor, m: int) -> Tensor:
    """[m, …]: the rows of those who are here, NaN for the others."""
    nothing = rows.new_full((m, *rows.shape[1:]), torch.nan)
    return nothing.index_copy(0, here, rows) if len(here) else nothing


def losses(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[models, users]: mean loss of model i on user j's examples, for any number of rows.

    Where rows are the users' own, those of absent users are NaN, as are their columns.
    """
    if fed.model.couples_examples:
        raise UcflError(
            "what the model says of an example depends on the others of its batch, so models "
            "cannot be compared on everyone's examples at once; choose another algorithm."
        )
    if fed.present is not None and fed.here is not None and len(theta) == fed.m:
        if not len(fed.here):
            return theta.new_full((fed.m, fed.m), torch.nan)
        return _among(losses(fed, theta[fed.here], data), fed.here, fed.m)
    real = data.real if fed.present is None else data.real & fed.present[:, None]
    owner = torch.arange(fed.m, device=fed.device)[:, None].expand_as(real)[real]
    inputs, labels = data.inputs[real], data.labels[real]
    table = theta.new_zeros(len(theta), fed.m)
    function = Scores(fed.model, cross_entropy)
    for start in range(0, len(labels), BLOCK):
        part = slice(start, start + BLOCK)
        users = owner[part]
        shared = longer(inputs[part][None], BLOCK)[0], longer(labels[part][None], BLOCK)[0]
        (each,) = fed.executor.map(function, theta, shared=shared)
        table.index_add_(1, users, each[:, : len(users)])
    sizes = data.sizes if fed.present is None else data.sizes * fed.present
    return table / sizes


def longer(examples: Tensor, length: int) -> Tensor:
    """[users, n, …] with zeros behind everyone's examples, where they are fewer."""
    extra = length - examples.shape[1]
    return examples if extra <= 0 else F.pad(examples, (0, 0) * (examples.dim() - 2) + (0, extra))
