"""What is minimised, and what methods are judged by. Nothing else knows what a target is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ucfl.errors import UcflError, unknown
from ucfl.federation import losses, metrics
from ucfl.federation.metrics import Metric
from ucfl.imports import load
from ucfl.options import split
from ucfl.users import Users

#: loss(outputs, targets) -> [n]: a number for each example.
Loss = Callable[[Tensor, Tensor], Tensor]
#: mixture(outputs [K, n, ...], log_weights [K, n]): what K models predict together.
Mixture = Callable[[Tensor, Tensor], Tensor]
#: What an example's target is: a class, numbers, or a class for each position of a sequence.
Targets = Literal["classes", "numbers", "sequences"]


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss for each example, and metrics by name; methods are judged by the first of them.

    ``loss(outputs, targets)`` gives a number for each example, as PyTorch's losses do with
    ``reduction="none"``; it is differentiated, and computed for many users at once. A metric is a
    :class:`Metric`, or such a function, of which the mean is taken and more is better. Without
    metrics it is the loss itself.

    ``mixture(outputs [K, n, ...], log_weights [K, n])`` says what several models with these
    weights predict together; where there is none, methods that mix predictions cannot be used.
    """

    loss: Loss
    metrics: Mapping[str, Metric | Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    name: str = "own"
    targets: Targets | None = None
    mixture: Mixture | None = None

    @property
    def measured(self) -> dict[str, Metric]:
        """The metrics by name, the first one first."""
        given = self.metrics or {"loss": Metric(self.loss, more_is_better=False)}
        return {
            name: metric if isinstance(metric, Metric) else Metric(metric)
            for name, metric in given.items()
        }

    @property
    def judge(self) -> Metric:
        """The first metric, by which methods are compared and rounds are chosen."""
        return next(iter(self.measured.values()))

    def outputs(self, users: Users) -> int:
        """How many numbers a model gives for an example, or for a position of a sequence."""
        return users.classes or max(1, int(torch.Size(users.target_shape).numel()))

    def check_users(self, users: Users) -> None:
        """Raise where the users' targets are not what this objective is about."""
        words = {
            "classes": "a class for each example, in whole numbers",
            "numbers": "floating-point numbers",
            "sequences": "a class for each position of a sequence, in whole numbers",
        }
        found: Targets = (
            "numbers" if not users.classes else "sequences" if users.target_shape else "classes"
        )
        if self.targets is not None and self.targets != found:
            raise UcflError(
                f"the objective {self.name!r} needs targets that are {words[self.targets]}; these "
                f"users' are {words[found]}: choose another objective, or convert them."
            )

    def check_outputs(self, outputs: Tensor, targets: Tensor, users: Users) -> None:
        """Raise where a model's outputs [n, ...], the loss or a metric has not the right form."""
        self._check_shape(tuple(outputs.shape[1:]), users)
        loss = f"the loss of objective {self.name!r}"
        with torch.enable_grad():
            given = outputs.detach().clone().requires_grad_()
            each = _called(loss, self.loss, given, targets)
        if each.shape != targets.shape[:1] or not each.is_floating_point():
            raise UcflError(
                f"{loss} gives a tensor of shape {tuple(each.shape)} and type {each.dtype} for "
                f"{len(targets)} examples; it must give one number for each of them, as with "
                'reduction="none".'
            )
        if not each.requires_grad:
            raise UcflError(
                f"{loss} has no gradient with respect to the outputs, so nothing would be trained; "
                "compute it without detach() and without rounding."
            )
        for name, metric in self.measured.items():
            kind = f"the metric {name!r}"
            found = _called(kind, metric.statistics, outputs, targets)
            if found.dim() not in (1, 2) or len(found) != len(targets):
                raise UcflError(
                    f"{kind} gives a tensor of shape {tuple(found.shape)} for {len(targets)} "
                    "examples; it must give a row or a number for each of them."
                )
            if bool(found.isnan().any()) and bool(outputs.isfinite().all()):
                raise UcflError(
                    f"{kind} gives NaN for the first model's outputs; it must give a number for "
                    "every example."
                )
            if self.targets is None:
                _check_value(kind, metric, found.double().reshape(len(targets), -1))

    def _check_shape(self, shape: tuple[int, ...], users: Users) -> None:
        needed: dict[Targets | None, tuple[tuple[int, ...], ...]] = {
            "classes": ((users.classes,),),
            "numbers": (users.target_shape, users.target_shape or (1,)),
            "sequences": ((*users.target_shape, users.classes),),
        }
        if self.targets is not None and shape not in needed[self.targets]:
            raise UcflError(
                f"the model gives outputs of shape {shape} for an example; the objective "
                f"{self.name!r} needs {needed[self.targets][-1]} for these users' targets."
            )


def _check_value(kind: str, metric: Metric, rows: Tensor) -> None:
    """Raise unless a person's metric makes one number of the sums of a user's rows."""
    count = torch.tensor([len(rows)], device=rows.device)
    value = _called(f"{kind}, by its value(),", metric.value, rows.sum(0)[None], count)
    if value.shape != (1,) or not value.is_floating_point() or not bool(value.isfinite().all()):
        raise UcflError(
            f"{kind}: value(sums [users, {rows.shape[1]}], count [users]) gives "
            f"{value.tolist()} of shape {tuple(value.shape)} for one user; it must give one "
            "finite number for each."
        )


def _called(kind: str, function: Callable[..., Any], outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        found = function(outputs, targets)
    except Exception as error:  # whatever the person's function raises
        raise UcflError(f"{kind} fails on the model's outputs: {error}.") from error
    if not isinstance(found, Tensor):
        raise UcflError(f"{kind} gives {type(found).__name__}, not a tensor.")
    return found


CLASSIFICATION = Objective(
    losses.cross_entropy,
    {
        "accuracy": metrics.ACCURACY,
        "balanced_accuracy": metrics.BALANCED_ACCURACY,
        "loss": Metric(losses.cross_entropy, more_is_better=False),
        "calibration_error": metrics.CALIBRATION_ERROR,
    },
    "classification",
    "classes",
    losses.mixture_of_classes,
)
NEXT_TOKEN = Objective(
    losses.next_token,
    {
        "accuracy": metrics.POSITION_ACCURACY,
        "loss": metrics.POSITION_LOSS,
        "perplexity": metrics.PERPLEXITY,
    },
    "next-token",
    "sequences",
    losses.mixture_of_classes,
)


def _regression(loss: str = "squared") -> Objective:
    """``loss``: squared or absolute."""
    errors = {"squared": losses.squared_error, "absolute": losses.absolute_error}
    if loss not in errors:
        raise UcflError(f"regression:loss={loss}: the loss is squared or absolute.")
    judged = sorted(errors, key=lambda word: word != loss)
    found = {f"{word}_error": Metric(errors[word], more_is_better=False) for word in judged}
    return Objective(
        errors[loss], {**found, "r2": metrics.R2}, "regression", "numbers", losses.mixture_of_means
    )


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "classification": lambda: CLASSIFICATION,
    "regression": _regression,
    "next-token": lambda: NEXT_TOKEN,
}


def objective(given: str | Objective) -> Objective:
    """An objective by its name, as ``regression:loss=absolute``, or by ``module:name``."""
    if isinstance(given, Objective):
        return given
    head, colon, rest = given.partition(":")
    if head in OBJECTIVES:
        name, options = split(given, "objective", OBJECTIVES)
        try:
            return OBJECTIVES[name](**options)
        except TypeError:
            has = "one option, loss" if name == "regression" else "no options"
            raise UcflError(f"{given!r}: the objective {name!r} has {has}.") from None
    if not colon or "=" in rest:
        raise unknown("objective", head, OBJECTIVES, "Your own goes by 'module:name'.")
    found = load(given, "objective")
    if not isinstance(found, Objective):
        raise UcflError(f"{given!r} is {type(found).__name__}, not a ucfl.Objective.")
    return found
