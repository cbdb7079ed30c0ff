"""What runs are judged by: how a metric's numbers are read, compared and printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A metric without its functions: its name, and whether more is better.

    One that is a share (``percent``) is shown in percent. Statistics over users are of those that
    have a value, in the unit in which they are shown; NaN if none has.
    """

    name: str = "accuracy"
    more_is_better: bool = True
    percent: bool = True

    @property
    def words(self) -> str:
        """The name as people read it."""
        return self.name.replace("_", " ")

    @property
    def unit(self) -> str:
        """What follows the name on an axis or in a title."""
        return " in %" if self.percent else ""

    @property
    def sign(self) -> str:
        """What follows a number in a sentence."""
        return "%" if self.percent else ""

    def shown(self, values: ArrayLike) -> Floats:
        """Values in the unit in which they are shown."""
        found: Floats = np.asarray(values, dtype=np.float64) * (100 if self.percent else 1)
        return found

    def mean(self, values: ArrayLike) -> float:
        """The mean over users."""
        real = self._real(values)
        return float(real.mean()) if len(real) else math.nan

    def worst(self, values: ArrayLike) -> float:
        """The worst user's: the lowest where more is better, else the highest."""
        real = self._real(values)
        if not len(real):
            return math.nan
        return float(real.min() if self.more_is_better else real.max())

    def _real(self, values: ArrayLike) -> Floats:
        shown = self.shown(values)
        return shown[~np.isnan(shown)]

    def chosen_round(self, means: Floats) -> int:
        """The trained round with the best mean on validation data, the earliest of equals.

        Without validation data there is nothing to choose by: the final round.
        """
        trained = means[1:] if self.more_is_better else -means[1:]
        if not len(trained) or np.isnan(trained).all():
            return len(means) - 1
        return 1 + int(np.nanargmax(trained))

    def best_round(self, validation: Floats) -> int:
        """The round that the users' values [rounds + 1, users] on validation data choose."""
        return self.chosen_round(np.array([self.mean(row) for row in validation]))

    def goodness(self, value: float) -> float:
        """A number that is larger for better values, and lowest for NaN: what to sort by."""
        if math.isnan(value):
            return -math.inf
        return value if self.more_is_better else -value

    def reached(self, values: Floats, target: float) -> int | None:
        """The first place at which values are as good as the target; None if never."""
        good = values >= target if self.more_is_better else values <= target
        places = np.flatnonzero(good)
        return int(places[0]) if len(places) else None

    def text(self, value: float, deviation: float | None = None) -> str:
        """A value as it is shown, and its deviation where there is one; a dash for NaN.

        One seed has no deviation; several may have one of 0.
        """
        if math.isnan(value):
            return "–"
        numbers = [value] if deviation is None else [value, deviation]
        return " ± ".join(f"{n:.1f}" if self.percent else f"{n:.4g}" for n in numbers)


ACCURACY = Measure()
