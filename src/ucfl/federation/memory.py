"""How many users to train side by side, and what becomes of the memory that they give back."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ucfl.federation.engine import Federation

#: Batches up to which a CPU stacks users, and how many (measured: benchmarks/chunks.py).
SMALL_BATCH, STACKED = 32, 10


#: Options of glibc's ``mallopt``, and what they are set to: blocks up to 32 MB (its own limit) come
#: from the heap, and a gigabyte of it may lie free.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 1 << 30}


@cache
def keep_pages() -> bool:
    """Ask the C library to keep what is freed, for the whole process; whether it could be asked.

    A step frees and takes the same megabytes over and over. Left alone, glibc gives them back to
    the system in between, and they come again page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*option) for option in KEPT.items())


def default_chunk(fed: Federation) -> int:
    """All users that fit on a GPU; on a CPU, what its cache likes.

    There, stacking users shares the cost of starting each operation, which is most of the time
    when batches are small; too many users at once leave the cache, or a core without work.
    """
    if fed.device.type == "cpu":
        if fed.training.batch > SMALL_BATCH:
            return 1
        share = -(-fed.m // torch.get_num_threads())
        return min(fed.m, max(2, min(STACKED, share)))  # never one by one: the bits would differ
    free, _ = torch.cuda.mem_get_info(fed.device)
    return max(1, min(fed.m, int(0.5 * free / bytes_per_user(fed))))


def bytes_per_user(fed: Federation) -> float:
    """Memory for one more user in a chunk: its rows, and what autograd keeps of a batch."""
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    start, cut = fed.rows.initial.to(fed.device), fed.rows.trainable
    one = fed.users.train.inputs[0, :1], fed.users.train.labels[0, :1]
    key = torch.zeros((), dtype=torch.int64, device=fed.device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        fed.user_loss(start[:cut].requires_grad_(), start[cut:], *one, None, None, key + 1, key)
    # The backward pass needs about as much again, and vmap copies some of its inputs.
    return 3.0 * kept * fed.training.batch + 8.0 * start.element_size() * fed.rows.size
