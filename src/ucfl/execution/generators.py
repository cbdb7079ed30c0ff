"""The random generators of the process, to find out whether a function draws from one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def drawn_from(function: Callable[[], object]) -> list[str]:
    """The generators that a call of the function draws from."""
    before = _states()
    function()
    return [name for name, state in _states().items() if not _equal(state, before[name])]


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "PyTorch's generator": torch.get_rng_state(),
        "Python's random": random.getstate(),
        "NumPy's generator": tuple(np.random.get_state())[1:3],  # noqa: NPY002 (others may)
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["the GPU's generator"] = torch.cuda.get_rng_state()
    return states


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return bool(np.array_equal(one, other))
