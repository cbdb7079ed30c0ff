"""Who learns from whom, as a method answers when it is asked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucfl.collaboration.streams import MOST_STREAMS, stream_choices


@dataclass(frozen=True, eq=False)
class Collaboration:
    """What a collaboration round found.

    ``weights`` [m, m] is W; ``labels`` [m] is the stream of each user (None: everyone listens to
    all); ``silhouettes`` are those of k = 1, 2, … streams; ``spread`` is how far apart users are,
    over the noise.
    """

    weights: Tensor
    labels: Tensor | None
    silhouettes: Tensor
    spread: float | None = None

    @classmethod
    def of(cls, weights: Tensor, labels: Tensor | None = None, seed: int = 0) -> Collaboration:
        """W, with the silhouettes of its rows' clusterings into 1, 2, … streams."""
        choices = stream_choices(weights, MOST_STREAMS, seed)
        return cls(weights, labels, torch.tensor([score for score, _ in choices.values()]))
