"""How groups of users come to differ: rotated inputs, permuted labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray


def group_of_users(users: int, groups: int) -> NDArray[np.int64]:
    """Group id of each user: consecutive blocks, sizes differing by one at most."""
    return np.arange(users) * groups // users


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
