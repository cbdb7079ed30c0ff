"""Users in parts that are computed together: one part after another, or on several cores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Chunks:
    """m users, ``usual`` of them at a time.

    ``plain`` takes each as it is; ``threaded`` says that parts may be computed at the same time.
    """

    def __init__(
        self, m: int, usual: int, device: torch.device, *, plain: bool, threaded: bool
    ) -> None:
        self._m, self._usual, self._device = m, usual, device
        self._plain, self._threaded = plain, threaded
        self._parts: dict[int, list[tuple[Tensor, int]]] = {}

    def over(self, function: Callable[[Tensor], Result], chunk: int | None = None) -> list[Result]:
        """A function of some users, for all of them; what it returns has users first.

        Threads compute with one core each: small models keep cores busier that way, and a user's
        bits do not depend on the number of cores.
        """
        parts = self.parts(chunk)
        threads = torch.get_num_threads()
        if not self._threaded or threads == 1 or len(parts) == 1:
            return [_first(function(users), real) for users, real in parts]
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(min(threads, len(parts))) as pool:
                results = list(pool.map(lambda part: function(part[0]), parts))
        finally:
            torch.set_num_threads(threads)
        return [_first(result, real) for result, (_, real) in zip(results, parts, strict=True)]

    def parts(self, chunk: int | None = None) -> list[tuple[Tensor, int]]:
        """Users to compute together, and how many of them are real.

        All parts are equally long, filled up with copies of their last user: a graph serves them
        all. Nor is a user ever stacked alone, since backends compute one model with other kernels
        than several, and rounding differences grow from round to round. With two or more, the bits
        of a user's result were the same for every chunk with LeNet-5 and VGG on the CPUs tried.
        """
        chunk = min(chunk or self._usual, self._m)
        if chunk not in self._parts:
            everyone = torch.arange(self._m, device=self._device)
            alone = self._plain or chunk == self._usual == 1
            even = 1 if alone else max(2, -(-self._m // -(-self._m // chunk)))
            self._parts[chunk] = [
                (torch.cat([users, users[-1:].expand(even - len(users))]), len(users))
                for users in everyone.split(even)
            ]
        return self._parts[chunk]


def _first(result: Result, real: int) -> Result:
    """The first users of a tensor, or of a tuple of tensors."""
    if isinstance(result, tuple):
        return tuple(part[:real] for part in result)  # type: ignore[return-value]
    return result[:real]  # type: ignore[index,no-any-return]
