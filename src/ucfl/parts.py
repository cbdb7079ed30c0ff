"""Parts of a model: sets of columns of Θ, such as those of its last layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

#: From the first column to the one after the last.
Range = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """Some of the ``size`` columns of Θ, as ``ranges`` in order that do not touch each other.

    ``~part`` is all of the others, ``a & b`` what two parts share, ``a - b`` what only a has.
    """

    name: str
    ranges: tuple[Range, ...]
    size: int

    @classmethod
    def joined(cls, name: str, ranges: Iterable[Range], size: int) -> Part:
        """The part of any ranges."""
        found: list[Range] = []
        for start, end in sorted(ranges):
            if found and start <= found[-1][1]:
                start, end = found[-1][0], max(end, found[-1][1])
                found.pop()
            if start < end:
                found.append((start, end))
        return cls(name, tuple(found), size)

    @property
    def count(self) -> int:
        """How many columns it has."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """The length of each range."""
        return [end - start for start, end in self.ranges]

    @property
    def share(self) -> float:
        """What part of the model it is."""
        return self.count / self.size

    @property
    def mask(self) -> Tensor:
        """[P]: which columns it has."""
        found = torch.zeros(self.size, dtype=torch.bool)
        for start, end in self.ranges:
            found[start:end] = True
        return found

    def of(self, theta: Tensor) -> Tensor:
        """Its columns of Θ; a view where they lie together."""
        found = [theta[:, start:end] for start, end in self.ranges]
        return found[0] if len(found) == 1 else torch.cat([theta[:, :0], *found], dim=1)

    def put(self, theta: Tensor, columns: Tensor) -> Tensor:
        """Θ with others in the place of its columns."""
        found = theta.clone(memory_format=torch.contiguous_format)
        for (start, end), piece in zip(self.ranges, columns.split(self.lengths, 1), strict=True):
            found[:, start:end] = piece
        return found

    def called(self, name: str) -> Part:
        """The same columns under another name."""
        return Part(name, self.ranges, self.size)

    def __invert__(self) -> Part:
        ends = [0, *(place for each in self.ranges for place in each), self.size]
        others = zip(ends[::2], ends[1::2], strict=True)
        return Part.joined(f"all but {self.name}", others, self.size)

    def __and__(self, other: Part) -> Part:
        common = [
            (max(a, c), min(b, d))
            for a, b in self.ranges
            for c, d in other.ranges
            if max(a, c) < min(b, d)
        ]
        return Part.joined(f"{self.name} in {other.name}", common, self.size)

    def __sub__(self, other: Part) -> Part:
        return (self & ~other).called(f"{self.name} but {other.name}")
