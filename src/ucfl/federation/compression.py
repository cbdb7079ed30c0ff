"""Messages in fewer bytes: what of a message arrives, and what it takes on air.

A message is a change: what a user has learnt since it last received a model, or what a stream's
model has moved by since its listeners last had one. Each compression is a pure function of
messages and keys; the bytes are those of the encoding in its docstring.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ucfl import options
from ucfl.federation.draws import hashed_places, uniform_places
from ucfl.options import PositiveShare, check_fields

Bits = Annotated[int, Field(ge=2, le=16)]


@dataclass(frozen=True)
class Compression(ABC):
    """What becomes of messages [n, P] on the way; ``lengths`` cut P into the model's tensors."""

    name: ClassVar[str]
    #: Whether what is lost of a message is added to its sender's next one (error feedback).
    remembers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @abstractmethod
    def received(self, messages: Tensor, lengths: Sequence[int], keys: Tensor) -> Tensor:
        """[n, P]: what the other side decodes; ``keys`` [n] decide all that is random."""

    @abstractmethod
    def bytes(self, lengths: Sequence[int], number: int) -> int:
        """What one message takes, where a number takes ``number`` bytes."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What is sent, for a sentence."""


@dataclass(frozen=True)
class Whole(Compression):
    """Messages as they are: every number in the model's own precision."""

    name: ClassVar[str] = "none"

    def received(self, messages: Tensor, lengths: Sequence[int], keys: Tensor) -> Tensor:
        """The messages."""
        return messages

    def bytes(self, lengths: Sequence[int], number: int) -> int:
        """All numbers."""
        return sum(lengths) * number

    @property
    def words(self) -> str:
        """As it is."""
        return "as it is"


@dataclass(frozen=True)
class Quantise(Compression):
    """Every number as one of 2L + 1 levels, L = 2^(bits − 1) − 1, by stochastic rounding.

    Each tensor has a scale of its own, s = max |x|: x arrives as s/L · ⌊L x/s + u⌋ with u uniform
    in [0, 1), so that E[received] = x (QSGD, Alistarh et al., NeurIPS 2017, with the largest number
    in place of the norm). A tensor of n numbers is sent as s, then n whole numbers of so many bits.
    """

    bits: Bits = 8

    name: ClassVar[str] = "quantise"

    def received(self, messages: Tensor, lengths: Sequence[int], keys: Tensor) -> Tensor:
        """Tensor by tensor."""
        top = float(2 ** (self.bits - 1) - 1)
        drawn = uniform_places(keys, messages.shape[1]).to(messages.dtype)
        found = []
        for part, by in zip(_cut(messages, lengths), _cut(drawn, lengths), strict=True):
            scale = part.abs().amax(1, keepdim=True)
            level = torch.floor(part / torch.where(scale > 0, scale, 1) * top + by)
            # The largest number is at a level; u just below 1 would round the sum to the next.
            found.append(level.clamp(-top, top) * (scale / top))
        return torch.cat(found, dim=1) if found else messages

    def bytes(self, lengths: Sequence[int], number: int) -> int:
        """A scale and the levels, tensor by tensor."""
        return sum(number + math.ceil(n * self.bits / 8) for n in lengths if n)

    @property
    def words(self) -> str:
        """Its bits."""
        return f"quantised to {self.bits} bits by stochastic rounding"


@dataclass(frozen=True)
class TopK(Compression):
    """The ⌈share · n⌉ numbers of a message that are largest in size; the rest is kept for later.

    With error feedback (Stich et al., NeurIPS 2018; Seide et al., 2014) what is not sent is added
    to the sender's next message: ‖x − received‖² ≤ (1 − k/n) ‖x‖². k numbers are sent as they are,
    with their places among n in ⌈log2 n⌉ bits each.
    """

    share: PositiveShare = 0.05

    name: ClassVar[str] = "top-k"
    remembers: ClassVar[bool] = True

    def received(self, messages: Tensor, lengths: Sequence[int], keys: Tensor) -> Tensor:
        """Of all tensors together."""
        count = self._count(messages.shape[1])
        places = messages.abs().topk(count, dim=1, sorted=False).indices
        return torch.zeros_like(messages).scatter(1, places, messages.gather(1, places))

    def bytes(self, lengths: Sequence[int], number: int) -> int:
        """Numbers and their places."""
        n = sum(lengths)
        if not n:
            return 0
        count = self._count(n)
        return count * number + math.ceil(count * math.ceil(math.log2(n)) / 8)

    def _count(self, n: int) -> int:
        # As typed: 0.07 · 100 is 7, though the product of the floats is a little more.
        return min(n, math.ceil(round(self.share * n, 6)))

    @property
    def words(self) -> str:
        """Its share."""
        return f"reduced to its largest {100 * self.share:g}%, with error feedback"


@dataclass(frozen=True)
class Sketch(Compression):
    """A count sketch of ⌈share · n⌉ numbers for a tensor of n, with error feedback.

    Every place p is put into a bucket b(p) with a sign ±1, drawn anew by the message's key, which
    both sides know; the mean of a bucket's signed numbers is sent, and x_p arrives as its sign
    times that mean. This is x's orthogonal projection on the sketch's rows, so that
    ‖x − received‖ ≤ ‖x‖, and what is lost, about 1 − share of ‖x‖² in the mean, is added to the
    sender's next message (count sketch: Charikar et al., 2002; for learning: Ivkin et al., 2019).
    """

    share: PositiveShare = 0.1

    name: ClassVar[str] = "sketch"
    remembers: ClassVar[bool] = True

    def received(self, messages: Tensor, lengths: Sequence[int], keys: Tensor) -> Tensor:
        """Tensor by tensor."""
        drawn, found = hashed_places(keys, messages.shape[1]), []
        for part, by in zip(_cut(messages, lengths), _cut(drawn, lengths), strict=True):
            sign = (1 - 2 * (by & 1)).to(part.dtype)
            bucket = ((by >> 1) * self._count(part.shape[1])) >> 31
            empty = part.new_zeros(len(part), self._count(part.shape[1]))
            sums = empty.scatter_add(1, bucket, sign * part)
            inside = empty.scatter_add(1, bucket, torch.ones_like(part))
            found.append(sign * (sums / inside.clamp(min=1)).gather(1, bucket))
        return torch.cat(found, dim=1) if found else messages

    def bytes(self, lengths: Sequence[int], number: int) -> int:
        """The buckets."""
        return sum(self._count(n) * number for n in lengths)

    def _count(self, n: int) -> int:
        return min(n, math.ceil(round(self.share * n, 6)))

    @property
    def words(self) -> str:
        """Its share."""
        return f"sketched in {100 * self.share:g}% as many numbers, with error feedback"


COMPRESSIONS: dict[str, type[Compression]] = {
    kind.name: kind for kind in (Whole, Quantise, TopK, Sketch)
}


def compression(text: str) -> Compression:
    """A compression by its name and options, such as ``quantise:bits=4``."""
    name, given = options.split(text, "compression", COMPRESSIONS)
    return COMPRESSIONS[name](**options.typed(COMPRESSIONS[name], name, given))


def _cut(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Columns of each tensor that has any."""
    return [part for part in rows.split(list(lengths), 1) if part.shape[1]]
