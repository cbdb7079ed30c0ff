"""A user's model outside the federation: a plain module that takes the user's data as it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ucfl.errors import UcflError
from ucfl.federation.layers import adapt
from ucfl.federation.model import scaled
from ucfl.federation.objective import Objective, objective
from ucfl.federation.rows import Rows

if TYPE_CHECKING:
    from ucfl.federation.federation import Federation


@dataclass(frozen=True, eq=False)
class Architecture:
    """What all users' models have in common: layers (``template``), inputs and the objective.

    ``aim`` is the objective, or its name: only mixtures ask for it.
    """

    template: nn.Module
    input_shape: tuple[int, ...]
    aim: Objective | str = "classification"

    @classmethod
    def of(cls, fed: Federation) -> Architecture:
        """The architecture of a federation's models."""
        return cls(fed.model.template, fed.users.input_shape, fed.objective)

    @cached_property
    def objective(self) -> Objective:
        """What the models were trained for."""
        return objective(self.aim)

    @cached_property
    def rows(self) -> Rows:
        """Where each parameter and buffer lies in a row of Θ, as in the federation."""
        return Rows(adapt(self.template)[0])

    def module(self, row: Tensor) -> nn.Module:
        """A module of its own with the parameters and buffers of a row of Θ, to evaluate."""
        return self.rows.module(row, self.template).eval()


class Deployed(nn.Module):
    """A model that takes inputs as the users' data has them, and prepares them as training did.

    ``inputs`` is the type that the users' data is stacked in (:class:`ucfl.users.Examples`):
    bytes become numbers in [0, 1], other numbers stay; both in the model's precision.
    """

    precision: Tensor

    def __init__(self, model: nn.Module, inputs: torch.dtype, precision: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        # A buffer, so that it follows the model to another precision; no part of its state.
        self.register_buffer("precision", torch.zeros((), dtype=precision), persistent=False)
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model says of examples [n, ...]."""
        if _kind(inputs.dtype) != _kind(self.inputs):
            raise UcflError(
                f"this model was trained on inputs that are {_kind(self.inputs)}, and these are "
                f"{_kind(inputs.dtype)}; give them as they are in the users' data."
            )
        copied = inputs.to(self.inputs, copy=True)  # a model may write to its inputs
        outputs: Tensor = self.model(scaled(copied, self.precision.dtype))
        return outputs

    def extra_repr(self) -> str:
        """The inputs that it takes."""
        return f"inputs={self.inputs}"


def _kind(dtype: torch.dtype) -> str:
    """What users' inputs may be, all of them alike."""
    if dtype == torch.uint8:
        return "bytes (torch.uint8)"
    return "real numbers" if dtype.is_floating_point else "whole numbers"
