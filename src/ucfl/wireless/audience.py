"""Who listens to which broadcast, part of the model by part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Which stream each user listens to: [m] numbers from 0.
Labels = NDArray[np.int64]
#: How far parts may be from their share of a compressed model: each has scales and places of its
#: own.
SLACK = 0.01


@dataclass(frozen=True, eq=False)
class Audience:
    """For each part of the model that is broadcast: its share of the model, and who hears what.

    Every part has streams of its own, and :data:`Labels` of its own.
    """

    parts: tuple[tuple[float, Labels], ...]

    @classmethod
    def of(cls, given: Audience | Labels | None) -> Audience | None:
        """The audience itself, or that of streams which carry the whole model."""
        if given is None or isinstance(given, Audience):
            return given
        return cls(((1.0, given),))

    @property
    def labels(self) -> Labels | None:
        """Each user's stream, where all that is broadcast has the same listeners."""
        return self.parts[0][1] if len(self.parts) == 1 else None

    def fits(self, models: float) -> bool:
        """Whether it is the audience of so many models."""
        return math.isclose(self.models, models, rel_tol=SLACK)

    @property
    def models(self) -> float:
        """How many models its streams carry together."""
        return sum(share * (int(labels.max()) + 1) for share, labels in self.parts)

    def scaled(self, factor: float) -> Audience:
        """The same where streams are compressed to so much of what they were."""
        return Audience(tuple((share * factor, labels) for share, labels in self.parts))

    def of_all(self, gathered: Callable[[Labels], Labels]) -> Audience:
        """That of all users, where this one has some of them; ``gathered`` adds the others."""
        return Audience(tuple((share, gathered(labels)) for share, labels in self.parts))

    def among(self, present: NDArray[np.bool_]) -> Audience:
        """Some of the users alone; streams that none of them hears are not sent."""
        return Audience(
            tuple(
                (share, np.unique(labels[present], return_inverse=True)[1].astype(np.int64))
                for share, labels in self.parts
            )
        )
