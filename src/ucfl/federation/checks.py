"""Whether a model can be trained at all: what cannot is refused in one sentence, before it runs.

Users share one module, whose parameters and buffers are swapped. So a model must be a function of
its parameters, its buffers and its inputs: what it keeps elsewhere would pass from user to user,
and random numbers of its own could never be repeated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ucfl.errors import UcflError
from ucfl.execution import Precision, computing, drawn_from
from ucfl.federation.model import LocalModel
from ucfl.users import Users

#: Relative difference from which on two outputs are not the same up to rounding.
DIFFERENT = 1e-3


def check(model: LocalModel, users: Users, *, padded: bool, precision: Precision) -> None:
    """Raise a :class:`UcflError` where the model does not fit the users or is no pure function.

    And find out whether it couples the examples of a batch, other than by BatchNorm: such a model
    must not see padding, which ``padded`` says is there in training, and is in evaluation.
    """
    if model.rows.trainable == 0:
        raise UcflError("the model has no trainable parameter.")
    real = users.train.real
    examples = users.train.inputs[real.nonzero()[:2].unbind(1)]
    device = examples.device
    with computing(precision, device), torch.no_grad():
        given = examples.clone()
        _check_shape(model, users, given[:1])
        model.writes_inputs = not torch.equal(given, examples)
    with computing("float32", device), torch.no_grad():
        for training in (False, True):
            called = _Called(model, training)
            if training:
                _check_runs(called, examples)
            _check_draws(called, examples)
            _check_memory(called, examples)
            if len(examples) == 2 and (padded or not training):
                model.couples_examples |= _couples_examples(called, examples)


class _Called:
    """The model in one of its modes, as a function of its inputs."""

    def __init__(self, model: LocalModel, training: bool) -> None:
        self.model, self.training = model, training

    def __call__(self, inputs: Tensor, real: Tensor | None = None) -> Tensor:
        model = self.model
        row, cut = model.rows.initial.to(inputs.device), model.rows.trainable
        model.adapted.train(self.training)
        model.context.real = real
        model.context.key = torch.zeros((), dtype=torch.int64, device=inputs.device)
        return model.call(model.rows.tensors(row[:cut], row[cut:]), inputs)


def _check_shape(model: LocalModel, users: Users, example: Tensor) -> None:
    try:
        out = _Called(model, training=False)(example)
    except Exception as error:  # whatever the person's model raises
        raise UcflError(
            f"the model does not take inputs of shape {users.input_shape}: {error}."
        ) from error
    if out.shape != (1, users.classes):
        raise UcflError(
            f"the model gives outputs of shape {tuple(out.shape[1:])} for data with "
            f"{users.classes} classes."
        )


def _check_runs(called: _Called, examples: Tensor) -> None:
    try:
        called(examples)
    except Exception as error:  # whatever the person's model raises
        raise UcflError(f"the model fails in training mode: {error}.") from error


def _check_draws(called: _Called, examples: Tensor) -> None:
    if drawn := drawn_from(lambda: called(examples)):
        raise UcflError(
            f"the model draws random numbers of its own ({', '.join(drawn)}), which no run could "
            "repeat: use nn.Dropout layers, whose draws are keyed by seed, round and user, and "
            "set the dropout of attention and recurrent layers to 0."
        )


def _check_memory(called: _Called, examples: Tensor) -> None:
    """A second pass must not know of the first."""
    first = called(examples)
    kept = _kept(called.model.adapted)
    called(examples.flip(0))
    changed = {
        name for name, value in _kept(called.model.adapted).items() if kept.get(name) != value
    }
    if changed:
        raise UcflError(
            f"the model keeps {', '.join(sorted(changed))} from one batch to the next, which all "
            "users would share: register it as a buffer, or do without."
        )
    if not _alike(called(examples), first):
        raise UcflError(
            "the model gives two answers to the same inputs: it keeps something from batch to "
            "batch or draws random numbers of its own; register what it keeps as a buffer."
        )


def _kept(module: nn.Module) -> dict[str, Any]:
    """Plain values that modules hold, by name, and how many there are in what they hold."""
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            where = f"{prefix}.{name}".lstrip(".")
            if name in ("training", "_parameters", "_buffers", "_modules"):
                continue
            if isinstance(value, bool | int | float | str):
                found[where] = value
            elif isinstance(value, list | dict | set):
                found[where] = len(value)
    return found


def _couples_examples(called: _Called, examples: Tensor) -> bool:
    """Whether what the model says of two examples depends on what pads their batch."""
    real = torch.tensor([True, True, False, False], device=examples.device)
    other = examples.flip(0)
    if other.is_floating_point():
        other = 7 * other + 3
    elif other.dtype == torch.uint8:
        other = 255 - other
    padding = torch.zeros_like(examples), other
    answers = [called(torch.cat([examples, beside]), real)[:2] for beside in padding]
    return not _alike(*answers)


def _alike(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().max()) if one.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=DIFFERENT, atol=DIFFERENT * scale, equal_nan=True))
