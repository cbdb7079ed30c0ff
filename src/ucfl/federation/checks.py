"""Whether a model can be trained at all: what cannot is refused in one sentence, before it runs.

Users share one module, whose parameters and buffers are swapped. So a model must be a function of
its parameters, its buffers and its inputs: what it keeps elsewhere would pass from user to user,
and random numbers of its own could never be repeated.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ucfl.errors import UcflError, first_line
from ucfl.execution import Precision, computing, drawn_from, version
from ucfl.federation.draws import uniform
from ucfl.federation.model import LocalModel
from ucfl.users import Users

#: Relative difference from which on two outputs are not the same up to rounding.
DIFFERENT = 1e-3


def check(model: LocalModel, users: Users, *, precision: Precision) -> None:
    """Raise a :class:`UcflError` where the model does not fit the users or is no pure function.

    And find out whether it writes to its inputs (then it gets a copy), and whether it couples the
    examples of a batch other than by BatchNorm (then it must not see padding).
    """
    model.objective.check_users(users)
    if model.rows.trainable == 0:
        raise UcflError("the model has no trainable parameter.")
    real = users.train.real
    first = real.nonzero()[:2].unbind(1)
    examples, targets = users.train.inputs[first], users.train.targets[first]
    device = examples.device
    with computing(precision, device), torch.no_grad():
        _check_shape(model, users, examples, targets)
    with computing("float32", device), torch.no_grad():
        evaluated, trained = _Called(model, training=False), _Called(model, training=True)
        _check_runs(trained, examples)
        for called in (evaluated, trained):
            _check_draws(called, examples)
            _check_writes(called, examples)
        _check_memory(evaluated, trained, examples)
        if len(examples) == 2:
            model.couples_examples = any(
                _couples_examples(called, examples) for called in (evaluated, trained)
            )


class _Called:
    """The model in one of its modes, as a function of its inputs.

    Its weights are the first ones with a little noise: with a last layer of zeros, for instance,
    outputs would tell nothing.
    """

    def __init__(self, model: LocalModel, training: bool) -> None:
        self.model, self.training = model, training
        device = next(model.adapted.parameters()).device
        row, cut = model.rows.initial.to(device), model.rows.trainable
        place = torch.arange(cut, device=device)
        noise = (uniform(7, place) - 0.5).to(row.dtype) * 0.1
        self.weights, self.rest = row[:cut] + noise, row[cut:]
        self.as_made = self.weights.clone()

    def __call__(self, inputs: Tensor, real: Tensor | None = None) -> Tensor:
        return self.with_buffers(inputs, real)[0]

    def with_buffers(self, inputs: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs, and the buffers that come out."""
        model = self.model
        model.adapted.train(self.training)
        model.context.real = real if self.training else None
        model.context.key = torch.zeros((), dtype=torch.int64, device=inputs.device)
        tensors = model.rows.tensors(self.weights, self.rest)
        return model.call(tensors, inputs), model.rows.rest(tensors)


def _check_shape(model: LocalModel, users: Users, example: Tensor, target: Tensor) -> None:
    try:
        out = _Called(model, training=False)(example.clone())
    except Exception as error:  # whatever the person's model raises
        raise UcflError(
            f"the model does not take inputs of shape {users.input_shape} ({first_line(error)}): "
            "change its first layer, or reshape them in its forward()."
        ) from error
    model.output_shape = tuple(out.shape[1:])
    model.objective.check_outputs(out, target, users)


def _check_runs(called: _Called, examples: Tensor) -> None:
    try:
        called(examples.clone())
    except Exception as error:  # whatever the person's model raises
        raise UcflError(f"the model fails in training mode: {error}.") from error


def _check_draws(called: _Called, examples: Tensor) -> None:
    if drawn := drawn_from(lambda: called(examples.clone())):
        raise UcflError(
            f"the model draws random numbers of its own ({', '.join(drawn)}), which no run could "
            "repeat: use nn.Dropout layers, whose draws are keyed by seed, round and user, and "
            "set the dropout of attention and recurrent layers to 0."
        )


def _check_writes(called: _Called, examples: Tensor) -> None:
    """Inputs that are written to are copied from then on; parameters must not be."""
    given = examples.clone()
    untouched = version(given)
    called(given)
    called.model.writes_inputs |= version(given) != untouched
    if not torch.equal(called.weights, called.as_made):
        raise UcflError(
            "the model writes to its parameters when it is called (an embedding with max_norm, "
            "for instance), but they are the training's to change: do it without."
        )


def _check_memory(evaluated: _Called, trained: _Called, examples: Tensor) -> None:
    """A pass must not know of those before it, in either mode."""
    other = _unlike(examples)
    first = [called(examples) for called in (evaluated, trained)]
    kept = _kept(trained.model.adapted)
    for called in (trained, evaluated):
        called(other)
    now = _kept(trained.model.adapted)
    changed = {name for name in {*kept, *now} if not _same(kept.get(name), now.get(name))}
    if changed:
        raise UcflError(
            f"the model keeps {', '.join(sorted(changed))} from one batch to the next, which all "
            "users would share: register it as a buffer, or do without."
        )
    again = [called(examples) for called in (evaluated, trained)]
    if not all(map(_alike, first, again)):
        raise UcflError(
            "the model gives two answers to the same inputs: it keeps something from batch to "
            "batch or draws random numbers of its own; register what it keeps as a buffer."
        )


def _kept(module: nn.Module) -> dict[str, Any]:
    """Values that modules hold beside parameters and buffers, by name."""
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            known = name in ("training", "_parameters", "_buffers", "_modules")
            if not known and isinstance(value, bool | int | float | str | Tensor | list | dict):
                found[f"{prefix}.{name}".lstrip(".")] = copy.deepcopy(_plain(value))
    return found


def _plain(value: Any) -> Any:
    """What of a value can be compared: tensors, numbers, and how many there are of others."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, list | dict):
        items = value.values() if isinstance(value, dict) else value
        return [
            _plain(item) if isinstance(item, bool | int | float | str | Tensor) else None
            for item in items
        ]
    return value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _unlike(examples: Tensor) -> Tensor:
    """Other examples of the same kind, with other sums."""
    other = examples.flip(0)
    if other.is_floating_point():
        return 7 * other + 3
    return 255 - other if other.dtype == torch.uint8 else other[:1].expand_as(other).contiguous()


def _couples_examples(called: _Called, examples: Tensor) -> bool:
    """Whether outputs or buffers of two examples depend on what else is in a padded batch."""
    real = torch.tensor([True, True, False, False], device=examples.device)
    alone = called.with_buffers(examples)
    for padding in (torch.zeros_like(examples), _unlike(examples)):
        try:
            outputs, buffers = called.with_buffers(torch.cat([examples, padding]), real)
        except Exception:  # a model that takes no other batch must not be given one
            return True
        if not (_alike(outputs[:2], alone[0]) and _alike(buffers, alone[1])):
            return True
    return False


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    finite = one[one.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=DIFFERENT, atol=DIFFERENT * scale, equal_nan=True))
