"""Users in chunks of equal length: what is stacked at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """Users ``start`` to ``stop``, of which the last ``fresh`` are in no chunk before."""

    start: int
    stop: int
    fresh: int

    def of(self, stacked: Tensor) -> Tensor:
        """These users' rows; the tensor itself where they are all, so that it can be recognised."""
        rows = stacked.detach() if stacked.requires_grad else stacked
        whole = self.start == 0 and self.stop == len(stacked)
        return (rows if whole else rows[self.start : self.stop]).contiguous()

    def new(self, result: Tensor) -> Tensor:
        """What the chunk adds to those before it."""
        return result[len(result) - self.fresh :]


@lru_cache(maxsize=256)
def chunks(users: int, most: int) -> tuple[Chunk, ...]:
    """``most`` users at a time; all chunks are equally long, so that one graph serves them all.

    The last one begins early enough to be full, and what it computes twice is dropped. Nor is a
    user stacked alone where others are not: one model is computed by other kernels than several,
    and rounding differences grow from round to round.
    """
    rows = -(-users // -(-users // min(most, users)))
    if rows == 1 < most:
        rows = min(2, users)
    ends = [min(start + rows, users) for start in range(0, users, rows)]
    fresh = [end - start for start, end in zip(range(0, users, rows), ends, strict=True)]
    return tuple(Chunk(end - rows, end, new) for end, new in zip(ends, fresh, strict=True))
