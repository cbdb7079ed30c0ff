"""Whether two methods differ: a paired test over the users or the seeds that both have.

Users differ far more from each other than methods do, so values are compared user by user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ucfl.measure import Measure
from ucfl.runs.record import Record

Floats = NDArray[np.float64]

#: How often two methods that do not differ are said to, for each pair of methods.
ERROR_RATE = 0.05
#: With so many seeds, the mean of each is one observation; with fewer, each user is.
SEEDS_FOR_A_TEST = 3
#: All assignments of signs are tried up to this many observations; beyond, random ones.
EXACT = 13
BLOCKS, FLIPS = 20, 500


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another, and whether that could be chance.

    ``mean`` is over users and seeds, positive where the first method is better; ``p`` is the
    two-sided probability of a difference at least as large between methods that do not differ.
    ``over`` says what was compared in pairs (``users`` or ``seeds``), ``count`` how many.
    """

    mean: float
    p: float
    over: str
    count: int

    @property
    def shown(self) -> bool:
        """Whether the methods are told apart at the error rate."""
        return self.p < ERROR_RATE


def compare(ours: Sequence[Record], theirs: Sequence[Record]) -> Difference:
    """The difference between two methods in the final round, over the seeds that both have."""
    rivals = {record.seed: record for record in theirs}
    gains = [_gains(one, rivals[one.seed]) for one in ours if one.seed in rivals]
    gains = [found for found in gains if len(found)]
    if not gains:
        return Difference(math.nan, 1.0, "users", 0)
    means = np.array([found.mean() for found in gains])
    if len(means) >= SEEDS_FOR_A_TEST:
        return Difference(float(means.mean()), t_test(means), "seeds", len(means))
    users = np.concatenate(gains)
    return Difference(float(means.mean()), sign_flip_test(users), "users", len(users))


def _gains(ours: Record, theirs: Record) -> Floats:
    """Every user's gain, of those that have a value with both methods."""
    measure: Measure = ours.measure
    gains = (ours.final - theirs.final) * (1 if measure.more_is_better else -1)
    found: Floats = gains[~np.isnan(gains)]
    return found


def sign_flip_test(differences: Floats) -> float:
    """p that the mean is zero, by flipping signs (Fisher's randomisation test, two-sided).

    Exact, whatever the distribution, where it is symmetric about zero: under the hypothesis that
    nothing differs, a user's difference is as likely to have the other sign.
    """
    n = len(differences)
    least = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    if n <= EXACT:
        signs = 1 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return float(np.mean(np.abs(signs @ differences) >= least))
    rng, beyond = np.random.default_rng(0), 0
    for _ in range(BLOCKS):
        signs = 1 - 2.0 * rng.integers(0, 2, (FLIPS, n), dtype=np.int8)
        beyond += int(np.sum(np.abs(signs @ differences) >= least))
    return (1 + beyond) / (1 + BLOCKS * FLIPS)


def t_test(differences: Floats) -> float:
    """p that the mean is zero, by Student's paired t-test (two-sided); 1 if one is no number."""
    from scipy import stats  # here: it is slow to import, and most commands report nothing

    if not np.isfinite(differences).all():
        return 1.0
    if not differences.std() > 0:
        return float(differences[0] == 0)
    return float(stats.ttest_1samp(differences, 0.0).pvalue)
