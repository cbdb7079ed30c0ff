"""Who gets which examples: functions from labels (or a count) to one index array per user."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError, UcflWarning

Indices = NDArray[np.int64]

#: One example for each of training, validation and test.
FEWEST = 3


def iid(points: int, users: int, rng: np.random.Generator) -> list[Indices]:
    """Deal all points out at random, in shares that differ by one at most."""
    _check_enough(points, users)
    return [np.sort(part) for part in np.array_split(rng.permutation(points), users)]


def by_size(points: int, sizes: Sequence[int], rng: np.random.Generator) -> list[Indices]:
    """Deal points out at random, ``sizes[i]`` of them to user i."""
    if min(sizes, default=0) < 1:
        raise UcflError("every user's size must be at least 1.")
    if sum(sizes) > points:
        raise UcflError(f"the sizes ask for {sum(sizes)} points, but there are only {points}.")
    shuffled = rng.permutation(points)[: sum(sizes)]
    return [np.sort(part) for part in np.split(shuffled, np.cumsum(sizes)[:-1])]


def dirichlet(
    labels: NDArray[np.int64],
    users: int,
    alpha: float,
    rng: np.random.Generator,
    fewest: int = FEWEST,
) -> list[Indices]:
    """Split each class over the users in proportions drawn from a symmetric Dirichlet.

    Small ``alpha`` gives users few classes each; large ``alpha`` makes them alike. One draw is
    always enough: a user left with under ``fewest`` points takes the rest from the largest user
    (a :class:`UcflWarning` says so), which ends after at most ``users * fewest`` moves.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise UcflError(f"the Dirichlet parameter must be a positive number, not {alpha}.")
    _check_enough(len(labels), users, fewest)
    parts: list[list[Indices]] = [[] for _ in range(users)]
    for label in np.unique(labels):
        points = rng.permutation(np.flatnonzero(labels == label))
        shares = _dirichlet_shares(alpha, users, rng)
        cuts = np.round(np.cumsum(shares)[:-1] * len(points)).astype(int)
        for part, piece in zip(parts, np.split(points, cuts), strict=True):
            part.append(piece)
    split = [rng.permutation(np.concatenate(part)) for part in parts]
    poor = [i for i, part in enumerate(split) if len(part) < fewest]
    for i in poor:
        while len(split[i]) < fewest:
            richest = max(range(users), key=lambda j: len(split[j]))
            split[i] = np.append(split[i], split[richest][-1])
            split[richest] = split[richest][:-1]
    if poor:
        warnings.warn(
            f"the Dirichlet draw (alpha {alpha:g}) left {len(poor)} of {users} users with under "
            f"{fewest} points; they were given points of the largest users.",
            UcflWarning,
            stacklevel=2,
        )
    return [np.sort(part) for part in split]


def hold_out(
    points: int, share: float, rng: np.random.Generator
) -> tuple[Indices, Indices, Indices]:
    """Training, validation and test indices: ``share`` is held out and halved, test first.

    The smallest users keep one training example before anything is held out, and get a test
    example before a validation example.
    """
    if not 0 <= share < 1:
        raise UcflError(f"the held-out share must lie in [0, 1), not {share}.")
    wanted = 0 if share == 0 else max(round(points * share), 2)
    held = min(wanted, points - 1)
    order = rng.permutation(points)
    test, validation = (held + 1) // 2, held // 2
    train = points - held
    return (
        np.sort(order[:train]),
        np.sort(order[train : train + validation]),
        np.sort(order[points - test :]),
    )


def _check_enough(points: int, users: int, fewest: int = 1) -> None:
    if users < 1:
        raise UcflError(f"a federation needs at least one user, not {users}.")
    if points < users * fewest:
        raise UcflError(
            f"{points} points are too few for {users} users with at least {fewest} each."
        )


def _dirichlet_shares(alpha: float, users: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """One draw; where a tiny alpha underflows every gamma variate, its limit: one user has all."""
    shares = rng.dirichlet(np.full(users, alpha))
    if np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6:
        return shares
    alone = np.zeros(users)
    alone[rng.integers(users)] = 1
    return alone
