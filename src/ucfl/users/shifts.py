"""How groups of users come to differ: rotated or scrambled images, permuted labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.users.form import Pair
from ucfl.users.partition import apportion


@dataclass(frozen=True)
class View:
    """How a group sees an example; None is as it is."""

    rotation: float | None = None
    pixels: NDArray[np.int64] | None = None
    labels: NDArray[np.int64] | None = None

    def __call__(self, pair: Pair) -> Pair:
        """A user's pair as its group sees it."""
        inputs, answers = pair
        if self.rotation is not None:
            inputs = rotate(inputs, self.rotation)
        if self.pixels is not None:
            inputs = scramble(inputs, self.pixels)
        return inputs, answers if self.labels is None else self.labels[answers]


def group_of_users(users: int, groups: int, shares: Sequence[float] = ()) -> NDArray[np.int64]:
    """Group id of each user: consecutive blocks, in proportion to the shares.

    Without shares their sizes differ by one at most.
    """
    if shares:
        return np.repeat(np.arange(groups), apportion(users, shares, fewest=1))
    return np.arange(users) * groups // users


def scramble(images: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """The same permutation of pixels in all images [n, channels, height, width] and channels."""
    flat = images.reshape(*images.shape[:2], len(order))
    return np.ascontiguousarray(flat[:, :, order]).reshape(images.shape)


def rotate(images: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Rotate images [n, channels, height, width] counter-clockwise.

    Quarter turns of square images move pixels and change none; other angles are interpolated
    linearly inside the same frame.
    """
    quarters, rest = divmod(degrees, 90)
    square = images.shape[2] == images.shape[3]
    if rest == 0 and (square or quarters % 2 == 0):
        return np.ascontiguousarray(np.rot90(images, int(quarters), axes=(2, 3)))
    turned: NDArray[Any] = scipy.ndimage.rotate(
        images, degrees, axes=(3, 2), reshape=False, order=1
    )
    return turned


def label_permutations(
    classes: int, groups: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """One random permutation of the labels per group, all different while that is possible.

    Two groups may still agree on some label: the paper asks for a *random* permutation, and only
    such chance agreements explain FedAvg's printed 24% (four groups that disagree on every label
    would cap a single model at 25% times its accuracy).
    """
    drawn: list[NDArray[np.int64]] = []
    distinct = 1
    for factor in range(2, classes + 1):
        distinct = min(distinct * factor, groups)
    while len(drawn) < groups:
        candidate = rng.permutation(classes)
        if len(drawn) >= distinct or not any(np.array_equal(candidate, p) for p in drawn):
            drawn.append(candidate)
    return drawn


def conflicting_permutations(
    classes: int, groups: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """One permutation of the labels per group; any two groups disagree on every label.

    They are rows of a Latin square: the cyclic one, its rows, columns and symbols shuffled.
    """
    if groups > classes:
        raise UcflError(
            f"{groups} groups cannot disagree on every one of {classes} labels; take at most "
            f"{classes} groups, or permute_labels = true."
        )
    rows, columns, symbols = (rng.permutation(classes) for _ in range(3))
    return [symbols[(row + columns) % classes] for row in rows[:groups]]
