"""Users shared out to processes (``torchrun``): each holds its own users' rows of everything.

Users meet in sums and in small gathered vectors, and only :class:`Mixing` and the collaboration
round ask for those, so algorithms are written as if there were one process. In a single process
all of this does nothing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def ranks() -> int:
    """How many processes share the users."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process among them."""
    return dist.get_rank() if ranks() > 1 else 0


def summed(part: Tensor) -> Tensor:
    """The sum of every process's part."""
    if ranks() == 1:
        return part
    total = part.contiguous().clone()
    dist.all_reduce(total)
    return total


def gathered(rows: Tensor) -> Tensor:
    """The rows of all users, in order; every process gives its own users', as many as it has."""
    if ranks() == 1:
        return rows
    lengths = _lengths(len(rows), rows.device)
    padded = rows.new_zeros(max(lengths), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def mine(count: int, device: torch.device) -> slice:
    """Where this process's ``count`` users are among all."""
    before = _lengths(count, device)[: rank()] if ranks() > 1 else []
    return slice(sum(before), sum(before) + count)


def share(users: int) -> range:
    """The users of this process, of so many: equal parts, the first ones larger by one."""
    each, more = divmod(users, ranks())
    start = rank() * each + min(rank(), more)
    return range(start, start + each + (rank() < more))


def agreed(tensor: Tensor) -> Tensor:
    """The first process's value, where all computed the same up to rounding."""
    if ranks() > 1:
        tensor = tensor.contiguous().clone()
        dist.broadcast(tensor, 0)
    return tensor


def _lengths(count: int, device: torch.device) -> list[int]:
    own = torch.tensor([count], device=device)
    every = [torch.empty_like(own) for _ in range(ranks())]
    dist.all_gather(every, own)
    return [int(one) for one in every]
