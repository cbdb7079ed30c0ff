"""Who gets which examples: functions from labels (or a count) to one index array per user."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

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


def by_classes(
    labels: NDArray[np.int64], users: int, each: int, rng: np.random.Generator
) -> list[Indices]:
    """``each`` classes for every user, at random; a class is shared evenly by those that have it.

    The numbers of users that have a class differ by one at most (McMahan et al., 2017, deal shards
    of sorted examples, so that a user may have fewer classes).
    """
    present = np.unique(labels)
    if each > len(present):
        raise UcflError(
            f"there are {len(present)} classes, so no user can have {each}; take fewer each."
        )
    _check_enough(len(labels), users, FEWEST)
    owners: list[list[int]] = [[] for _ in present]
    for user in rng.permutation(users).tolist():
        crowded = np.array([len(who) for who in owners]) + rng.random(len(present))
        for place in np.argsort(crowded)[:each]:
            owners[place].append(user)
    parts: list[list[Indices]] = [[] for _ in range(users)]
    for label, who in zip(present, owners, strict=True):
        points = rng.permutation(np.flatnonzero(labels == label))
        if len(points) < len(who):
            raise UcflError(
                f"the {len(points)} examples of class {label} are too few for the {len(who)} users "
                "that would have it; take more points, fewer users or fewer classes each."
            )
        for user, piece in zip(who, np.array_split(points, max(len(who), 1)), strict=False):
            parts[user].append(piece)
    if unused := sum(not who for who in owners):
        warnings.warn(
            f"{users} users with {each} classes each leave {unused} of {len(present)} classes to "
            "nobody; their examples are not used.",
            UcflWarning,
            stacklevel=2,
        )
    return [np.sort(np.concatenate(part)) for part in parts]


def lognormal_sizes(
    points: int, users: int, sigma: float, rng: np.random.Generator, fewest: int = FEWEST
) -> list[int]:
    """Users' sizes, all points together: exp(``sigma`` z) with standard normal z, in proportion.

    Nobody has under ``fewest``; the largest users give what that takes.
    """
    _check_enough(points, users, fewest)
    logs = sigma * rng.standard_normal(users)
    return apportion(points, np.exp(logs - logs.max()), fewest)


def apportion(total: int, shares: Sequence[float] | NDArray[Any], fewest: int) -> list[int]:
    """Whole numbers in proportion to the shares: the largest remainders are rounded up.

    What has under ``fewest`` is given the rest by the largest.
    """
    exact = total * (np.asarray(shares, dtype=np.float64) / np.sum(shares, dtype=np.float64))
    sizes = np.floor(exact).astype(np.int64)
    most_missing = np.argsort(sizes - exact, kind="stable")
    sizes[most_missing[: total - sizes.sum()]] += 1
    for place in np.flatnonzero(sizes < fewest):
        while sizes[place] < fewest:
            sizes[sizes.argmax()] -= 1
            sizes[place] += 1
    return [int(size) for size in sizes]


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


def hold_out_in_time(points: int, share: float) -> tuple[Indices, Indices, Indices]:
    """Training, validation and test windows of one recording: earlier, later, last.

    Each window overlaps the next one, so the one at each border is in no part. A recording too
    short for all three parts is for training alone.
    """
    if not 0 <= share < 1:
        raise UcflError(f"the held-out share must lie in [0, 1), not {share}.")
    every, gaps = np.arange(points), 2
    if share == 0 or points < FEWEST + gaps:
        return every, every[:0], every[:0]
    held = min(max(round(points * share), 2), points - gaps - 1)
    test = points - (held + 1) // 2
    validation = test - 1 - held // 2
    return every[: validation - 1], every[validation : test - 1], every[test:]


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
