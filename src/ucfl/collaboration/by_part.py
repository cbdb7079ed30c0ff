"""Aggregation by parts of the model: Θ_b ← W_b Θ_b, with a mixing matrix for each part b."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ucfl.errors import UcflError
from ucfl.parts import Part

if TYPE_CHECKING:
    from ucfl.collaboration.mixing import Mixing


@dataclass(frozen=True, eq=False)
class MixingByPart:
    """A mixing matrix for each of some parts; columns of no part stay with their user.

    It has what a :class:`Mixing` has: a product with Θ, ``among``, and what it sends, in models.
    Parts with one ``Mixing`` object are mixed by one product.
    """

    parts: Mapping[Part, Mixing]

    def __post_init__(self) -> None:
        for one, other in itertools.combinations(self.parts, 2):
            if one.size != other.size:
                raise UcflError(
                    f"the parts {one.name!r} and {other.name!r} are of models of {one.size} and "
                    f"{other.size} parameters; take both from one federation."
                )
            if (one & other).count:
                raise UcflError(
                    f"the parts {one.name!r} and {other.name!r} have parameters in common; leave "
                    f"them out of one of them, as in a - b."
                )

    @property
    def sent(self) -> float:
        """How many models are broadcast: a part's streams count as much as the part does."""
        return sum(part.count * mixing.sent for part, mixing in self.parts.items()) / self._size

    @property
    def uploaded(self) -> float:
        """What part of a model each user sends: what is mixed at all."""
        return sum(part.count for part in self.parts) / self._size

    def among(self, present: Tensor | None) -> MixingByPart:
        """The same without absent users, in every part."""
        there = {id(mixing): mixing.among(present) for mixing in self.parts.values()}
        return MixingByPart({part: there[id(mixing)] for part, mixing in self.parts.items()})

    def __matmul__(self, theta: Tensor) -> Tensor:
        if not self.parts:
            return theta
        if theta.shape[1] != self._size:
            raise UcflError(
                f"parts of a model of {self._size} parameters do not fit rows of {theta.shape[1]}."
            )
        pieces: dict[int, Tensor] = {}  # by their first column
        for mixing, part in self.products():
            mixed = mixing @ part.of(theta)
            for (start, _), columns in zip(part.ranges, mixed.split(part.lengths, 1), strict=True):
                pieces[start] = columns
        everything = Part.joined(
            "", (each for part in self.parts for each in part.ranges), self._size
        )
        pieces |= {start: theta[:, start:end] for start, end in (~everything).ranges}
        whole = [pieces[start] for start in sorted(pieces)]
        return whole[0] if len(whole) == 1 else torch.cat(whole, dim=1)

    def products(self) -> list[tuple[Mixing, Part]]:
        """Each mixing matrix with all of its columns."""
        found: dict[int, tuple[Mixing, Part]] = {}
        for part, mixing in self.parts.items():
            ranges = found[id(mixing)][1].ranges if id(mixing) in found else ()
            found[id(mixing)] = mixing, Part.joined("", (*ranges, *part.ranges), part.size)
        return [(mixing, part) for mixing, part in found.values() if part.count]

    @property
    def _size(self) -> int:
        """P."""
        return next((part.size for part in self.parts), 1)
