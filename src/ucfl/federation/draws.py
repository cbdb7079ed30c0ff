"""Counter-based randomness: a draw depends on its key alone, never on what was drawn before.

Batch order is keyed by (seed, round, user, epoch). So every algorithm sees the same batches, and
taking users together or apart, sharding them over devices, or resuming changes nothing. The hash is
integer arithmetic in torch, so CPU and GPU give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def _scramble(h: Any) -> Any:
    """The finaliser of MurmurHash3, on a 32-bit value: a Python int, or an int64 tensor."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _LOW
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _LOW
    return h ^ (h >> 16)


def counter_hash(*key: Tensor | int) -> Tensor:
    """A 32-bit hash, as int64, of a key of whole numbers, broadcast over its tensors."""
    h: Any = 0x9E3779B9
    for word in key:
        for half in (word & _LOW, (word >> 32) & _LOW):
            h = _scramble(((h ^ half) * 0x9E3779B1 + 0x7F4A7C15) & _LOW)
    return torch.as_tensor(h)


def uniform(*key: Tensor | int) -> Tensor:
    """A number in [0, 1), as float64, of a key."""
    return counter_hash(*key).double() / (_LOW + 1)


def hashed_places(keys: Tensor, count: int) -> Tensor:
    """[n, count]: a 32-bit hash, as int64, of each key [n] and place: cheap for many places."""
    place = _scramble((torch.arange(count, device=keys.device) * 0x9E3779B1 + 0x7F4A7C15) & _LOW)
    return torch.as_tensor(_scramble(keys[:, None] ^ place))


def uniform_places(keys: Tensor, count: int) -> Tensor:
    """[n, count]: a number in [0, 1), as float32, of each key [n] and place."""
    return (hashed_places(keys, count) >> 8).float() / 2**24


def orders(
    seed: int, t: int, ids: Tensor, sizes: Tensor, epochs: int, longest: int, first: int = 0
) -> Tensor:
    """[users, epochs, longest]: a random order of each user's examples, padding last."""
    return ordered(order_keys(seed, t, ids, sizes, epochs, longest, first))


def order_keys(
    seed: int,
    t: int | Tensor,
    ids: Tensor,
    sizes: Tensor,
    epochs: int,
    longest: int,
    first: int = 0,
) -> Tensor:
    """[..., epochs, longest]: what the examples of a user, or of several, are ordered by.

    Epochs are numbered from ``first`` on.
    """
    device = ids.device
    position = torch.arange(longest, device=device)
    epoch = torch.arange(first, first + epochs, device=device)[:, None]
    keys = counter_hash(seed, t, ids[..., None, None], epoch, position)
    return torch.where(position < sizes[..., None, None], keys, _LOW + 1)


def ordered(keys: Tensor) -> Tensor:
    """The order that keys put examples in."""
    return keys.argsort(dim=-1, stable=True)
