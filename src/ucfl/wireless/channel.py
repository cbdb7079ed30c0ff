"""Path loss, line of sight, buildings and shadowing of 3GPP TR 38.901 (V19), clause 7.4.

Everything is a function of arrays [m], a value per user. Distances are in metres, the carrier in
hertz, losses in dB. ``distance`` is horizontal (d_2D), ``slant`` is the straight line (d_3D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

#: m/s, as note 1 of table 7.4.1-1 rounds it.
LIGHT = 3.0e8


@dataclass(frozen=True)
class State:
    """One way for a signal to arrive: a + b log₁₀ d_3D + c log₁₀ f_GHz − height (h_UT − 1.5).

    ``shadowing`` is the standard deviation in dB (table 7.4.1-1), ``correlation`` the distance in
    metres over which it is correlated (table 7.5-6, corr_distance_SF).
    """

    a: float
    b: float
    c: float
    shadowing: float
    correlation: float
    height: float = 0.0

    def loss(self, slant: Floats, carrier: float, user_height: Floats) -> Floats:
        """dB over the straight line."""
        gigahertz = math.log10(carrier / 1e9)
        found: Floats = self.a + self.b * np.log10(slant) + self.c * gigahertz
        return found - self.height * (user_height - 1.5)


@dataclass(frozen=True)
class Environment:
    """A scenario of TR 38.901: its two states, and who has line of sight.

    ``beyond`` is the factor of log₁₀(d'_BP² + (h_BS − h_UT)²) beyond the breakpoint distance, where
    the loss grows with 40 log₁₀ d_3D; None where the formula has no breakpoint. ``indoors``
    shadows users inside buildings (table 7.5-6, O2I); None where there are no walls between.
    The formulas hold from ``nearest`` to ``farthest`` metres.
    """

    line_of_sight: State
    obstructed: State
    probability: Callable[[Floats, Floats], Floats]
    beyond: float | None
    indoors: tuple[float, float] | None
    nearest: float
    farthest: float
    #: Whether the effective environment height is drawn (table 7.4.1-1, note 1, UMa).
    draws_height: bool = False

    def path_loss(
        self,
        distance: Floats,
        sees: Booleans,
        *,
        carrier: float,
        base_height: float,
        user_height: Floats,
        environment_height: Floats | float = 1.0,
    ) -> Floats:
        """Basic path loss of each user, who ``sees`` the base station or not (table 7.4.1-1).

        Without line of sight it is max(PL_LOS, PL'_NLOS), so that walls never help.
        """
        slant = np.hypot(distance, base_height - user_height)
        clear = self.line_of_sight.loss(slant, carrier, user_height)
        if self.beyond is not None:
            limit = breakpoint_distance(carrier, base_height, user_height, environment_height)
            state = self.line_of_sight
            far = state.a + 40 * np.log10(slant) + state.c * math.log10(carrier / 1e9)
            far = far - self.beyond * np.log10(limit**2 + (base_height - user_height) ** 2)
            clear = np.where(distance <= limit, clear, far)
        walled = np.maximum(clear, self.obstructed.loss(slant, carrier, user_height))
        return np.where(sees, clear, walled)

    def share_with_line_of_sight(self, nearest: float, radius: float, user_height: float) -> float:
        """The expected share among users spread evenly over a ring; without walls around them."""
        edges = np.linspace(nearest**2, radius**2, 200_001)
        middles = np.sqrt((edges[1:] + edges[:-1]) / 2)
        return float(self.probability(middles, np.full_like(middles, user_height)).mean())


def breakpoint_distance(
    carrier: float, base_height: float, user_height: Floats, environment_height: Floats | float
) -> Floats:
    """d'_BP = 4 (h_BS − h_E)(h_UT − h_E) f / c (table 7.4.1-1, note 1)."""
    found: Floats = (
        4 * (base_height - environment_height) * (user_height - environment_height) * carrier
    ) / LIGHT
    return found


def micro_line_of_sight(distance: Floats, user_height: Floats) -> Floats:
    """Pr_LOS of UMi-Street Canyon (table 7.4.2-1): outdoors, d_2D-out."""
    return _street(distance, 36.0)


def macro_line_of_sight(distance: Floats, user_height: Floats) -> Floats:
    """Pr_LOS of UMa (table 7.4.2-1); users above 13 m see farther."""
    high = np.clip((user_height - 13) / 10, 0, None) ** 1.5
    lift = 1 + high * 1.25 * (distance / 100) ** 3 * np.exp(-distance / 150)
    return np.where(distance <= 18, 1.0, _street(distance, 63.0) * lift)


def office_line_of_sight(distance: Floats, user_height: Floats) -> Floats:
    """Pr_LOS of the indoor mixed office (table 7.4.2-1)."""
    near = np.exp(-(distance - 1.2) / 4.7)
    far = 0.32 * np.exp(-(distance - 6.5) / 32.6)
    return np.where(distance <= 1.2, 1.0, np.where(distance < 6.5, near, far))


def _street(distance: Floats, decay: float) -> Floats:
    beyond = np.maximum(distance, 18.0)
    found: Floats = 18 / beyond + np.exp(-beyond / decay) * (1 - 18 / beyond)
    return found


def wall_loss(carrier: float, high: Booleans) -> Floats:
    """PL_tw through the outer wall: the low-loss or the high-loss building (table 7.4.3-2)."""
    gigahertz = carrier / 1e9
    glass, coated, concrete = 2 + 0.2 * gigahertz, 25.4 + 0.11 * gigahertz, 5 + 4 * gigahertz

    def through(share: float, window: float) -> float:
        return 5 - 10 * math.log10(
            share * 10 ** (-window / 10) + (1 - share) * 10 ** (-concrete / 10)
        )

    return np.where(high, through(0.7, coated), through(0.3, glass))


#: σ_P of the penetration loss in dB, of low-loss and high-loss buildings (table 7.4.3-2).
WALL_DEVIATION = (4.4, 6.5)
#: PL_in: dB for each metre inside (table 7.4.3-2).
INSIDE_LOSS = 0.5


def correlated(places: Floats, correlation: float, independent: Floats) -> Floats:
    """[m] standard normal values with R(Δx) = exp(−|Δx| / d_cor) (eq. 7.4-5).

    ``places`` [m, 2] are metres; ``independent`` [m] standard normal draws.
    """
    likeness = np.exp(-scipy.spatial.distance.cdist(places, places) / correlation)
    # Two users in one place make it singular; a billionth of a dB² keeps it positive definite.
    factor = np.linalg.cholesky(likeness + 1e-9 * np.eye(len(places)))
    found: Floats = factor @ independent
    return found


#: Scenarios by name: UMi-Street Canyon, UMa, InH-Office (mixed).
ENVIRONMENTS = {
    "urban-micro": Environment(
        line_of_sight=State(32.4, 21.0, 20.0, shadowing=4.0, correlation=10),
        obstructed=State(22.4, 35.3, 21.3, shadowing=7.82, correlation=13, height=0.3),
        probability=micro_line_of_sight,
        beyond=9.5,
        indoors=(7.0, 7.0),
        nearest=10,
        farthest=5000,
    ),
    "urban-macro": Environment(
        line_of_sight=State(28.0, 22.0, 20.0, shadowing=4.0, correlation=37),
        obstructed=State(13.54, 39.08, 20.0, shadowing=6.0, correlation=50, height=0.6),
        probability=macro_line_of_sight,
        beyond=9.0,
        indoors=(7.0, 7.0),
        nearest=10,
        farthest=5000,
        draws_height=True,
    ),
    "indoor-office": Environment(
        line_of_sight=State(32.4, 17.3, 20.0, shadowing=3.0, correlation=10),
        obstructed=State(17.3, 38.3, 24.9, shadowing=8.03, correlation=6),
        probability=office_line_of_sight,
        beyond=None,
        indoors=None,
        nearest=1,
        farthest=150,
    ),
}
