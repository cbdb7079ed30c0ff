"""The gradient of a function of one user, for whichever executor evaluates it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import grad

_mode = threading.local()


def gradient(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], at: Tensor
) -> tuple[Tensor, Tensor]:
    """∇f at a point, and what f returns beside its value."""
    if not getattr(_mode, "ordinary", False):
        gradient_at, beside = grad(function, has_aux=True)(at)
        return gradient_at, beside
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        value, beside = function(leaf)
        if not value.requires_grad:  # a loss that no parameter takes part in
            return torch.zeros_like(at), beside.detach()
        (gradient_at,) = torch.autograd.grad(value, leaf, materialize_grads=True)
    return gradient_at, beside.detach()


@contextmanager
def ordinary_autograd() -> Iterator[None]:
    """Inside, gradients are taken by ``torch.autograd``, not by ``torch.func``.

    It takes more models: ``torch.func`` refuses an ``autograd.Function`` without ``setup_context``.
    But it can be neither stacked nor traced.
    """
    before = getattr(_mode, "ordinary", False)
    _mode.ordinary = True
    try:
        yield
    finally:
        _mode.ordinary = before
