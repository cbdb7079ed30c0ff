"""Who learns from whom, as a method answers when it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucfl.collaboration.streams import MOST_STREAMS, stream_choices


@dataclass(frozen=True, eq=False)
class MixedPart:
    """A part of the model: its ``share`` of it, and how many ``streams`` go down (0: it stays).

    ``weights`` [m, m] and ``labels`` [m] are W and streams of this part, where users have several.
    """

    name: str
    share: float
    streams: int
    weights: Tensor | None = None
    labels: Tensor | None = None

    def __str__(self) -> str:
        streams = f"in {self.streams} stream{'s' * (self.streams > 1)}"
        where = streams if self.streams else "stays with its user"
        return f"{self.name} ({self.share:.1%} of the model) {where}"


@dataclass(frozen=True, eq=False)
class Collaboration:
    """What a collaboration round found, and what is mixed by parts.

    ``weights`` [m, m] is W (None: nobody has measured it); ``labels`` [m] is the stream of each
    user (None: everyone listens to all); ``silhouettes`` are those of k = 1, 2, … streams;
    ``spread`` is how far apart users are, over the noise. ``parts`` are those of the model that are
    treated differently, if any.
    """

    weights: Tensor | None = None
    labels: Tensor | None = None
    silhouettes: Tensor | None = None
    spread: float | None = None
    parts: Sequence[MixedPart] = ()

    def fits(self, users: int) -> bool:
        """Whether it can be what so many users found."""
        tables = [self.weights, *(part.weights for part in self.parts)]
        lists = [self.labels, *(part.labels for part in self.parts)]
        square = all(table is None or table.shape == (users, users) for table in tables)
        each = all(labels is None or labels.shape == (users,) for labels in lists)
        known = self.silhouettes is None or 1 <= self.silhouettes.numel() <= users
        return square and each and known and (self.weights is None) == (self.silhouettes is None)

    @classmethod
    def of(cls, weights: Tensor, labels: Tensor | None = None, seed: int = 0) -> Collaboration:
        """W, with the silhouettes of its rows' clusterings into 1, 2, … streams."""
        choices = stream_choices(weights, MOST_STREAMS, seed)
        return cls(weights, labels, torch.tensor([score for score, _ in choices.values()]))
