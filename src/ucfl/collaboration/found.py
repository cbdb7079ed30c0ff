"""Who learns from whom, as a method answers when it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
