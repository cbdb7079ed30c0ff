"""Which labels users have: their priors P(y), as what to add to a common model's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from scipy.special import gammaln

from ucfl.collaboration.prototypes import Floats, Labels

#: Twice the gain in log-likelihood under which users' labels count as draws from one
#: distribution: 5% of such users gain more (a mixture of χ² with 0 and 1 degrees of freedom).
SIGNIFICANT = 2.71
#: Natural logarithms of the least and the largest concentration that are looked at.
BOUNDS = (-3.0, 14.0)
#: Examples' worth of every class in a group's frequencies, so that none is zero.
PSEUDO = 0.5


def log_priors(counts: Any, groups: Labels) -> Floats:
    """[m, C]: log π_ic / q_c, for adding to the outputs of a model of user i's group.

    A model of everybody's data says log p(x | c) + log q_c up to a constant; with the user's prior
    π_i in the place of the group's frequencies q it says what is right for the user. Labels are
    Dirichlet-multinomial, with the concentration a of the largest likelihood, so that π_ic =
    (n_ic + a q_c) / (n_i + a): a user with few examples, or in a group whose users hardly differ,
    keeps q. Zero where the group's users differ by no more than chance.
    """
    n = np.asarray(counts, dtype=np.float64)
    found = np.zeros_like(n)
    for group in np.unique(groups):
        users = groups == group
        found[users] = shifts(n[users], *concentration(n[users]))
    return found


def shifts(counts: Floats, frequencies: Floats, a: float) -> Floats:
    """log π_ic / q_c of users with these counts [q, C]; zero for an infinite concentration."""
    if np.isinf(a):
        return np.zeros_like(counts)
    prior = (counts + a * frequencies) / (counts.sum(1, keepdims=True) + a)
    return np.asarray(np.log(prior / frequencies))


def concentration(counts: Floats) -> tuple[Floats, float]:
    """q [C] and a of the Dirichlet-multinomial that users' counts are drawn from.

    ∞ where one distribution of labels for all explains them as well.
    """
    total = counts.sum(0) + PSEUDO
    frequencies = total / total.sum()
    sizes = counts.sum(1)
    if len(counts) < 2:
        return frequencies, np.inf

    def likelihood(a: float) -> float:
        own = gammaln(counts + a * frequencies) - gammaln(a * frequencies)
        return float((gammaln(a) - gammaln(sizes + a) + own.sum(1)).sum())

    best = scipy.optimize.minimize_scalar(
        lambda log_a: -likelihood(np.exp(log_a)), bounds=BOUNDS, method="bounded"
    )
    multinomial = float((counts * np.log(frequencies)).sum())
    if 2 * (-float(best.fun) - multinomial) < SIGNIFICANT:
        return frequencies, np.inf
    return frequencies, float(np.exp(best.x))
