"""PyTorch's global random numbers, for what can draw from nothing else: a layer's first weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: One at a time: what two threads draw from the global generator in turns is neither's.
_drawing = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws inside follow from the seed alone, and outside the generator stays as it was."""
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
