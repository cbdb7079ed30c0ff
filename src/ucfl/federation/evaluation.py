"""How well models do: on their own user's examples, or on everyone's.

In a federation of those who are present, nobody looks at absent users' data or models: what would
be theirs is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor

from ucfl.errors import UcflError
from ucfl.execution import Function
from ucfl.federation.metrics import Metric
from ucfl.federation.model import LocalModel
from ucfl.users import Examples

if TYPE_CHECKING:
    from ucfl.federation.federation import Federation

#: Examples that go through one model at a time, which bounds memory.
BLOCK = 1024


@dataclass(frozen=True)
class Outputs:
    """What one model says of some inputs."""

    model: LocalModel

    def __call__(self, row: Tensor, inputs: Tensor) -> tuple[Tensor]:
        """[examples, ...]."""
        return (self.model.outputs(row, inputs),)


@dataclass(frozen=True)
class Losses:
    """The loss of one model on each of some examples."""

    model: LocalModel

    def __call__(self, row: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor]:
        """[examples]."""
        return (self.model.objective.loss(self.model.outputs(row, inputs), targets),)


@dataclass(frozen=True)
class Sums:
    """What metrics are made of: sums over the real ones of some examples."""

    model: LocalModel
    metrics: tuple[Metric, ...]

    def __call__(
        self, row: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> tuple[Tensor, ...]:
        """A row of sums for each metric."""
        outputs = self.model.outputs(row, inputs)
        return tuple(summed(metric.statistics(outputs, targets), real) for metric in self.metrics)


def summed(statistics: Tensor, real: Tensor) -> Tensor:
    """[..., s]: sums of rows [..., n, s], or of numbers [..., n], over real examples [..., n]."""
    rows = statistics.reshape(*real.shape, -1).to(torch.float64)
    # Not a product with zero: what a model makes of padding may be no number.
    return torch.where(real[..., None], rows, 0).sum(-2)


def measured(
    fed: Federation, theta: Tensor, data: Examples, metrics: Mapping[str, Metric]
) -> dict[str, Tensor]:
    """Each metric [m] of each user's model on its own examples; NaN without examples."""
    sums: list[Tensor] = []
    function = Sums(fed.model, tuple(metrics.values()))
    examples = data.inputs, data.targets, data.real
    for block in mapped(fed, function, theta, data, *examples, per_example=False):
        sums = [one + more for one, more in zip(sums, block, strict=True)] if sums else [*block]
    if not sums:  # nobody has an example
        return {name: theta.new_full((fed.m,), torch.nan) for name in metrics}
    found = zip(metrics.items(), sums, strict=True)
    return {name: _value(metric, one, data).to(theta.dtype) for (name, metric), one in found}


def _value(metric: Metric, sums: Tensor, data: Examples) -> Tensor:
    """A metric of sums; NaN without examples, whatever a person's own function makes of none."""
    return torch.where(data.sizes > 0, metric.value(sums, data.sizes), torch.nan)


def measured_outputs(fed: Federation, outputs: Tensor, data: Examples) -> dict[str, Tensor]:
    """The objective's metrics [m] of outputs [m, n, ...] on each user's own examples."""
    flat = outputs.flatten(0, 1), data.targets.flatten(0, 1)
    return {
        name: _value(metric, summed(metric.statistics(*flat), data.real), data)
        for name, metric in fed.objective.measured.items()
    }


def outputs(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[m, n, ...]: what each user's model says of its own examples, padding included."""
    parts = [found for (found,) in mapped(fed, Outputs(fed.model), theta, data, data.inputs)]
    if not parts:
        return theta.new_zeros(fed.m, 0, *fed.model.output_shape)
    return torch.cat(parts, dim=1)[:, : data.targets.shape[1]]


def example_losses(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[m, n]: the loss of each user's model on each of its own examples; NaN for padding alone."""
    parts = [theta.new_zeros(fed.m, 0)]
    losses = mapped(fed, Losses(fed.model), theta, data, data.inputs, data.targets)
    parts += [found for (found,) in losses]
    each = torch.cat(parts, dim=1)[:, : data.targets.shape[1]]
    # A model that makes no number of an example fits it not at all.
    return torch.where(data.real, each.nan_to_num(torch.inf, posinf=torch.inf), torch.nan)


def mapped(
    fed: Federation,
    function: Function,
    theta: Tensor,
    data: Examples,
    *examples: Tensor,
    per_example: bool = True,
) -> Iterator[tuple[Tensor, ...]]:
    """A function of everyone's row and examples [m, n, ...], block by block.

    The held-out splits are filled up to the longer one of them, so that they have equal shapes.
    """
    length, here = data.targets.shape[1], fed.here
    users = slice(None) if here is None else here if len(here) else slice(1)  # for the shapes
    held_out = max(fed.users.validation.targets.shape[1], fed.users.test.targets.shape[1])
    least = min(BLOCK, held_out) if length <= held_out else 0
    for start in range(0, length, BLOCK):
        block = tuple(longer(each[users, start : start + BLOCK], least) for each in examples)
        lengths = (data.sizes[users] - start).clamp(min=0)
        found = fed.executor.map(
            function, theta[users], examples=block, lengths=lengths, per_example=per_example
        )
        yield found if here is None else tuple(_among(one, here, fed.m) for one in found)


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
        return _among(_losses(fed, theta[fed.here], data), fed.here, fed.m)
    return _losses(fed, theta, data)


def _losses(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[models, users]: of all given models, on the examples of the users that are present."""
    real = data.real if fed.present is None else data.real & fed.present[:, None]
    owner = torch.arange(fed.m, device=fed.device)[:, None].expand_as(real)[real]
    inputs, targets = data.inputs[real], data.targets[real]
    table = theta.new_zeros(len(theta), fed.m)
    for start in range(0, len(targets), BLOCK):
        part = slice(start, start + BLOCK)
        users = owner[part]
        shared = longer(inputs[part][None], BLOCK)[0], longer(targets[part][None], BLOCK)[0]
        (each,) = fed.executor.map(Losses(fed.model), theta, shared=shared)
        table.index_add_(1, users, each[:, : len(users)])
    sizes = data.sizes if fed.present is None else data.sizes * fed.present
    return table / sizes


def longer(examples: Tensor, length: int) -> Tensor:
    """[users, n, …] with zeros behind everyone's examples, where they are fewer."""
    extra = length - examples.shape[1]
    return examples if extra <= 0 else F.pad(examples, (0, 0) * (examples.dim() - 2) + (0, extra))
