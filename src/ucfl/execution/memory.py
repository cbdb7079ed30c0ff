"""How much memory one more stacked user takes, and keeping freed memory in the process.

What keeping it gains: ``benchmarks/engine.py cpu`` (docs/speed.md, *Freed memory is kept*).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Options of glibc's ``mallopt``, and what they are set to: blocks up to 32 MB (its own limit) come
#: from the heap, and a gigabyte of it may lie free.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 1 << 30}


@cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed, for the whole process; whether it could be asked.

    A step frees and allocates the same megabytes over and over. By default glibc returns them to
    the system in between, and they are faulted in again page by page. Other C libraries have no
    ``mallopt``, and some systems no C library to be found: nothing is asked there.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return all(mallopt(*option) for option in KEPT.items())


def saved_bytes(function: Callable[[], Any]) -> int:
    """What autograd saves for the backward pass of a function."""
    saved = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return saved
