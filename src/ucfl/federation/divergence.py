"""Models that are no longer finite are named in the round in which they appear."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ucfl.errors import Diverged

if TYPE_CHECKING:
    from ucfl.federation.federation import Federation


def check_finite(
    fed: Federation, before: tuple[Tensor, ...], after: tuple[Tensor, ...], t: int
) -> None:
    """Raise :class:`Diverged` where rows have become NaN or infinite that were finite before.

    (A model may have infinite values from the start, such as a mask's.) Where processes share the
    users, all of them raise the same error. One sum over everything tells whether to look closer.
    """
    nothing = torch.zeros(1, dtype=fed.rows.dtype, device=fed.device)
    sums = [new.sum()[None] for new in after if new.numel() and new.is_floating_point()]
    totals = fed.gathered(torch.cat(sums) if sums else nothing)
    if all(map(math.isfinite, totals.tolist())):
        return
    lost = torch.zeros(len(after[0]), dtype=torch.bool, device=fed.device)
    for old, new in zip(before, after, strict=True):
        if new.numel() and new.is_floating_point():
            lost |= ~finite_rows(new) & finite_rows(old)
    if len(lost) < fed.m and fed.here is not None:
        lost = torch.zeros(fed.m, dtype=torch.bool, device=fed.device).index_copy(0, fed.here, lost)
    everyone = fed.gathered(lost)
    if bool(everyone.any()):
        here = len(everyone) == fed.m
        names = fed.users.names if here else [f"number {user}" for user in range(len(everyone))]
        raise Diverged(torch.nonzero(everyone)[:, 0].tolist(), names, t)


def finite_rows(theta: Tensor) -> Tensor:
    """[m]: whether every number in a row is finite."""
    return theta.reshape(len(theta), -1).isfinite().all(1)
