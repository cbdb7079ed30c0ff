"""Users that training never sees: they come when it is over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ucfl.errors import UcflError
from ucfl.users.population import Users


def with_newcomers(users: Users, share: float, seed: int) -> Users:
    """The users, of whom a share (one at least, where it is not 0) comes after training.

    Who does depends on the seed and on the number of users alone.
    """
    if users.newcomers is not None:
        _check_alike(users, users.newcomers)
    if share == 0:
        return users
    if users.newcomers is not None:
        raise UcflError(
            "the users bring newcomers of their own, so 'newcomers' has no effect; leave it out."
        )
    if len(users) < 2:
        raise UcflError("one user alone cannot be a newcomer: nobody would be left to train.")
    count = min(max(1, round(share * len(users))), len(users) - 1)
    late = np.sort(np.random.default_rng([seed, 7]).permutation(len(users))[:count])
    early = np.setdiff1d(np.arange(len(users)), late)
    return replace(users.select(early.tolist()), newcomers=users.select(late.tolist()))


def _check_alike(users: Users, others: Users) -> None:
    """Raise where newcomers' examples mean something else than the users'."""
    for what in ("input_shape", "target_shape", "classes", "class_names"):
        mine, theirs = getattr(users, what), getattr(others, what)
        if mine != theirs:
            raise UcflError(
                f"the newcomers' {what.replace('_', ' ')} are {theirs}, the users' {mine}: make "
                "both alike; classes= says how many classes there are."
            )
