"""Users drawn around a base station: where they are, what is in between, how much they lose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ucfl.wireless.channel import (
    INSIDE_LOSS,
    WALL_DEVIATION,
    Booleans,
    Environment,
    Floats,
    correlated,
    wall_loss,
)

#: d_2D-in is the smaller of two uniform draws up to this many metres (TR 38.901, 7.4.3.1).
DEEPEST = 25.0
#: Users whose shadowing is drawn together; more are cut into sectors, each drawn for itself: a
#: covariance of 10,000 users would fill a gigabyte.
MOST_TOGETHER = 2000


@dataclass(frozen=True, eq=False)
class Placement:
    """[m] of each user: metres, height, what it sees, and the parts of its loss in dB.

    ``inside`` is the way behind the outer wall in metres, 0 outdoors. An indoor user has
    ``line_of_sight`` where the wall of its building has; ``high_loss`` walls let less through.
    """

    distance: Floats
    angle: Floats
    height: Floats
    inside: Floats
    line_of_sight: Booleans
    high_loss: Booleans
    path_loss: Floats
    penetration: Floats
    shadowing: Floats

    @property
    def indoor(self) -> Booleans:
        """Who is inside a building."""
        return self.inside > 0

    @property
    def loss(self) -> Floats:
        """dB between the antennas: PL_b + PL_tw + PL_in + shadowing (eq. 7.4-2)."""
        return self.path_loss + self.penetration + self.shadowing


@dataclass(frozen=True)
class Draws:
    """Random numbers keyed by a seed and a purpose, so that no draw moves another."""

    seed: int
    users: int

    def generator(self, purpose: int) -> np.random.Generator:
        """The generator of one purpose; 0 and 1 were distances and shadowing from the start."""
        return np.random.default_rng([self.seed, purpose])

    def uniform(self, purpose: int) -> Floats:
        """[m] in [0, 1)."""
        return self.generator(purpose).random(self.users)

    def normal(self, purpose: int) -> Floats:
        """[m] standard normal."""
        return self.generator(purpose).normal(size=self.users)


def heights(draws: Draws, indoor: Booleans, outdoors: float) -> Floats:
    """h_UT: outdoors as given; inside, 3 (n − 1) + 1.5 m on floor n of a house with 4 to 8.

    TR 36.873, table 6-1, which TR 38.901's table 7.2-1 refers to: N_fl ~ uniform(4, 8),
    n_fl ~ uniform(1, N_fl).
    """
    floors = 4 + np.floor(5 * draws.uniform(3))
    floor = 1 + np.floor(floors * draws.uniform(4))
    return np.where(indoor, 3 * (floor - 1) + 1.5, outdoors)


def environment_heights(draws: Draws, distance: Floats, height: Floats) -> Floats:
    """h_E of UMa (table 7.4.1-1, note 1): 1 m with probability 1 / (1 + C), else 12, 15, … m.

    C = 0 for users below 13 m, and ((h_UT − 13)/10)^1.5 g(d) above.
    """
    reach = 1.25 * (distance / 100) ** 3 * np.exp(-distance / 150)
    reach = np.where(distance <= 18, 0.0, reach)
    more = np.clip((height - 13) / 10, 0, None) ** 1.5 * reach
    low = draws.uniform(5) < 1 / (1 + more)
    steps = np.floor((height - 1.5 - 12) / 3) + 1  # 12, 15, …, h_UT − 1.5
    drawn = 12 + 3 * np.floor(np.clip(steps, 1, None) * draws.uniform(6))
    return np.where(low | (steps < 1), 1.0, drawn)


def place(
    environment: Environment,
    draws: Draws,
    distance: Floats,
    *,
    carrier: float,
    base_height: float,
    user_height: float,
    indoor_share: float,
    high_loss_share: float,
    shadowed: bool = True,
) -> Placement:
    """Users at these horizontal distances: states, walls and shadowing drawn for each of them.

    Without ``shadowed``, neither shadowing nor the walls' deviations are drawn.
    """
    walls = environment.indoors is not None
    indoor = (draws.uniform(7) < indoor_share) & walls
    depth = DEEPEST * np.minimum(draws.uniform(8), draws.uniform(9))
    inside = np.where(indoor, np.clip(depth, 1e-9, distance), 0.0)
    height = heights(draws, indoor, user_height)
    sees = draws.uniform(10) < environment.probability(distance - inside, height)
    low = environment_heights(draws, distance, height) if environment.draws_height else 1.0
    loss = environment.path_loss(
        distance,
        sees,
        carrier=carrier,
        base_height=base_height,
        user_height=height,
        environment_height=low,
    )
    high = draws.uniform(11) < high_loss_share
    angle, shadow = 2 * np.pi * draws.uniform(2), np.zeros(len(distance))
    behind = wall_loss(carrier, high) + INSIDE_LOSS * inside
    if shadowed:
        behind = behind + np.where(high, *WALL_DEVIATION[::-1]) * draws.normal(12)
        shadow = _shadows(environment, draws, distance, angle, indoor, sees)
    return Placement(
        distance,
        angle,
        height,
        inside,
        sees,
        high,
        loss,
        np.where(indoor, behind, 0.0),
        shadow,
    )


def _shadows(
    environment: Environment,
    draws: Draws,
    distance: Floats,
    angle: Floats,
    indoor: Booleans,
    sees: Booleans,
) -> Floats:
    """Shadowing of each user's state; correlated among users of one state (clause 7.4.4)."""
    places = distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    clear, walled = environment.line_of_sight, environment.obstructed
    states = [
        (indoor, *(environment.indoors or (0.0, 1.0))),
        (~indoor & sees, clear.shadowing, clear.correlation),
        (~indoor & ~sees, walled.shadowing, walled.correlation),
    ]
    found, independent = np.zeros(len(distance)), draws.normal(1)
    for chosen, deviation, length in states:
        for block in _sectors(np.flatnonzero(chosen), angle):
            found[block] = deviation * correlated(places[block], length, independent[block])
    return found


def _sectors(members: NDArray[np.int64], angle: Floats) -> list[NDArray[np.int64]]:
    """The members together, or, where they are too many, cut by their angles."""
    if len(members) <= MOST_TOGETHER:
        return [members]
    around = members[np.argsort(angle[members], kind="stable")]
    return np.array_split(around, -(-len(around) // MOST_TOGETHER))
