"""How well models do: on their own user's examples, or on everyone's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor
from torch.func import vmap

from ucfl.users import Examples

if TYPE_CHECKING:
    from ucfl.federation.engine import Federation

#: Examples that go through one model at a time.
AT_ONCE = 1024


def accuracy(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """Share of its own examples that each user's model gets right; NaN without examples."""
    return _per_user(fed, theta, data, _right) / data.sizes


def loss(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """Mean loss of each user's model on its own examples; NaN without examples."""
    return _per_user(fed, theta, data, _loss) / data.sizes


def outputs(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[m, n, classes]: what each user's model says of its own examples, padding included."""

    def said(rows: Tensor, inputs: Tensor) -> tuple[Tensor, ...]:
        return (fed.each(fed.user_outputs, rows, inputs),)

    def chunk(users: Tensor) -> Tensor:
        parts = [
            fed.graph("outputs", said, theta[users], inputs)[0].clone()
            for inputs in data.inputs[users].split(AT_ONCE, dim=1)
        ]
        return torch.cat(parts, dim=1)

    return torch.cat(fed.chunks.over(chunk))


def example_losses(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[m, n]: the loss of each user's model on each of its own examples; NaN for padding."""
    each = _loss(outputs(fed, theta, data), data.labels)
    return torch.where(data.real, each, torch.nan)


def losses(fed: Federation, theta: Tensor, data: Examples) -> Tensor:
    """[models, users]: mean loss of model i on user j's examples, for any number of rows."""
    inputs, labels = data.inputs[data.real], data.labels[data.real]
    owner = torch.arange(fed.m, device=fed.device)[:, None].expand_as(data.real)[data.real]
    chunk = min(models_at_once(fed), len(theta))
    fill = AT_ONCE if chunk > 1 else 0

    def each_loss(rows: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        if len(rows) == 1:
            said = fed.user_outputs(rows[0], inputs)[None]
        else:
            said = vmap(fed.user_outputs, in_dims=(0, None))(rows, inputs)
        return (_loss(said, labels.expand(len(rows), -1)),)

    def some(rows: Tensor) -> Tensor:
        table = rows.new_zeros(len(rows), fed.m)
        for part in torch.arange(len(labels), device=fed.device).split(AT_ONCE):
            filled = (longer(t[part][None], fill)[0] for t in (inputs, labels))
            (each,) = fed.graph("losses", each_loss, rows.contiguous(), *filled)
            table.index_add_(1, owner[part], each[:, : len(part)])
        return table

    tables = []
    for rows in theta.split(chunk):
        filled = torch.cat([rows, rows[-1:].expand(chunk - len(rows), -1)])
        tables.append(some(filled)[: len(rows)])
    return torch.cat(tables) / data.sizes


def filled_up_to(fed: Federation) -> int:
    """How many examples everyone is given at least.

    On a GPU as many as the longer one of the two held-out splits has: they share a graph then,
    which takes longer to make than many rounds to evaluate.
    """
    held_out = fed.users.validation.labels.shape[1], fed.users.test.labels.shape[1]
    return min(AT_ONCE, max(held_out)) if fed.device.type == "cuda" else 0


def models_at_once(fed: Federation) -> int:
    """A CPU's cache likes one model at a time, a GPU many."""
    return fed.chunk if fed.device.type == "cuda" else 1


def _per_user(
    fed: Federation, theta: Tensor, data: Examples, score: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Sum of a score over each user's real examples, computed with the user's own row."""

    def scored(rows: Tensor, inputs: Tensor, labels: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        said = fed.each(fed.user_outputs, rows, inputs)
        return ((score(said, labels) * real).sum(-1, dtype=rows.dtype),)

    def chunk(users: Tensor) -> Tensor:
        total = theta.new_zeros(len(users))
        least = filled_up_to(fed)
        for start in range(0, data.labels.shape[1], AT_ONCE):
            part = slice(start, start + AT_ONCE)
            examples = (data.inputs[users, part], data.labels[users, part], data.real[users, part])
            total += fed.graph(
                score.__name__,
                scored,
                theta[users].contiguous(),
                *(longer(each, least) for each in examples),
            )[0]
        return total

    return torch.cat(fed.chunks.over(chunk))


def longer(examples: Tensor, length: int) -> Tensor:
    """[users, n, …] with zeros behind everyone's examples, where they are fewer."""
    extra = length - examples.shape[1]
    return examples if extra <= 0 else F.pad(examples, (0, 0) * (examples.dim() - 2) + (0, extra))


def _right(said: Tensor, labels: Tensor) -> Tensor:
    return said.argmax(-1) == labels


def _loss(said: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every example, for outputs [..., classes]."""
    flat = F.cross_entropy(said.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)
