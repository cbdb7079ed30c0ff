"""The model as a pure function of a row of Θ: what it says, and what it loses on a batch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ucfl.execution import gradient
from ucfl.federation.layers import CONVOLUTIONS, KeyedDropout, adapt
from ucfl.federation.objective import Objective
from ucfl.federation.rows import Rows
from ucfl.federation.schedule import Batch
from ucfl.parts import Part


class LocalModel:
    """One user's model. ``weights`` are the trainable part of its row, ``rest`` is all else.

    The module inside is one for all users, so these functions are never called at the same time:
    an executor traces them, or calls them for one user after another.
    """

    def __init__(self, module: nn.Module, objective: Objective, device: torch.device) -> None:
        self.objective = objective
        self.template = copy.deepcopy(module)
        self.adapted, self.context = adapt(module)
        self.adapted.to(device)
        self.rows = Rows(self.adapted)
        #: Of what it says of one example; see :mod:`.checks`.
        self.output_shape: tuple[int, ...] = ()
        #: Whether it writes to its inputs, and then gets a copy; see :mod:`.checks`.
        self.writes_inputs = False
        #: Whether what it says of an example depends on the others; see :mod:`.checks`.
        self.couples_examples = False
        #: Whether its last layer's input can be seen, once :meth:`observe` has found out.
        self.head_seen: bool | None = None
        self.keyed = any(isinstance(layer, KeyedDropout) for layer in self.adapted.modules())

    def only(self, part: Part) -> LocalModel:
        """The same model with everything outside of a part fixed (:meth:`Rows.only`)."""
        model = copy.copy(self)
        model.rows = self.rows.only(part)
        return model

    def outputs(self, row: Tensor, inputs: Tensor) -> Tensor:
        """What the model says of some inputs, in evaluation mode."""
        cut = self.rows.trainable
        self.adapted.eval()
        self.context.real = None
        self.context.key = torch.zeros((), dtype=torch.int64, device=inputs.device)
        return self.call(self.rows.tensors(row[:cut], row[cut:]), inputs)

    def observe(self, example: Tensor) -> None:
        """Find out whether the last layer's input can be seen: once, with an example [1, ...].

        It must be called once, with one tensor that has examples first, however many there are.
        """
        if self.head_seen is None:
            row, found = self.rows.initial.to(example.device), []
            with torch.no_grad():
                for count in (2, 3):
                    given, _ = self._at_head(row, example.expand(count, *example.shape[1:]))
                    found.append(given is not None and len(given) == count)
            self.head_seen = all(found)

    def features(self, row: Tensor, inputs: Tensor, positions: int = 0) -> Tensor:
        """[n, ..., F]: what the last layer is given, or the outputs where that cannot be seen.

        The last layer is the part ``head``. Each example has one row of features, the mean over
        its positions in a sequence or an image, or rows for ``positions`` dimensions of them.
        """
        found, outputs = self._at_head(row, inputs)
        wanted = 1 + positions
        shape = outputs.shape[:wanted]
        if not self.head_seen or found is None or found.shape[:wanted] != shape:
            found = outputs.reshape(*shape, -1)
        spread = tuple(range(wanted, found.dim() - 1))
        return found.mean(spread) if spread else found

    def _at_head(self, row: Tensor, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """What the last layer is given, features last, and the outputs."""
        given: list[Any] = []
        head = self.adapted.get_submodule(self.rows.head)
        noting = head.register_forward_pre_hook(lambda layer, inputs: given.append(inputs))
        try:
            outputs = self.outputs(row, inputs)
        finally:
            noting.remove()
        found = given[0][0] if len(given) == 1 and given[0] else None
        if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() < 2:
            return None, outputs
        return (found.movedim(1, -1) if isinstance(head, CONVOLUTIONS) else found), outputs

    def loss(self, weights: Tensor, rest: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean loss on a batch, in training mode, and the buffers that come out."""
        tensors = self.rows.tensors(weights, rest)
        self.adapted.train()
        self.context.real, self.context.key = batch.real, batch.key
        outputs = self.call(tensors, batch.inputs)
        losses = self.objective.loss(outputs, batch.targets)
        if batch.real is not None:
            losses = losses * batch.real
        if batch.weights is not None:
            losses = losses * batch.weights
        return losses.sum() / batch.divisor, self.rows.rest(tensors)

    def gradient(self, weights: Tensor, rest: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """∇ of the loss with respect to the weights, and the buffers that come out."""
        return gradient(lambda at: self.loss(at, rest, batch), weights)

    def call(self, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """The module with these parameters and buffers, in its present mode and context."""
        given = scaled(inputs, self.rows.dtype)
        if self.writes_inputs:
            given = given.clone()
        outputs: Tensor = functional_call(self.adapted, tensors, (given,), tie_weights=False)
        return outputs.to(self.rows.dtype)


def scaled(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes become numbers in [0, 1]; other numbers stay; both in the model's precision."""
    if inputs.dtype == torch.uint8:
        return inputs.to(dtype) / 255
    return inputs.to(dtype) if inputs.is_floating_point() else inputs
