"""Methods compared over several federations: average ranks, and which of them differ.

After Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006. Pure
functions of numbers: nothing here knows a run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ucfl.errors import UcflError

Floats = NDArray[np.float64]
#: Values by method, federation and seed; more is better.
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]

#: The share of false alarms that tests allow.
ALPHA = 0.05


@dataclass(frozen=True, eq=False)
class Block:
    """Every method on every federation: ``values`` [federations, methods], more is better.

    ``seeds`` are those that the values of a federation are means over; ``left_out`` says why a
    method is not among them.
    """

    methods: tuple[str, ...]
    federations: tuple[str, ...]
    seeds: Mapping[str, tuple[int, ...]]
    values: Floats
    left_out: Mapping[str, str]

    @property
    def ranks(self) -> Floats:
        """[federations, methods]."""
        return ranks(self.values)

    @property
    def average(self) -> dict[str, float]:
        """Average ranks over the federations, best first."""
        means = dict(zip(self.methods, self.ranks.mean(0).tolist(), strict=True))
        return dict(sorted(means.items(), key=lambda item: item[1]))


def block(scores: Scores, required: Collection[str]) -> Block | None:
    """What can be compared: the tests need every method on every federation. None: nothing.

    The federations are those where all ``required`` methods have a value; a method that has none on
    one of these is left out, since an average rank over other federations is no rank among the
    rest. A federation's values are means over the seeds that all methods have there, since seeds
    draw other users.
    """
    there = {name: scores.get(name, {}) for name in {**dict.fromkeys(required), **scores}}
    wanted = [there[name] for name in required]
    named = dict.fromkeys(fed for each in there.values() for fed in each)
    federations = [fed for fed in named if wanted and all(each.get(fed) for each in wanted)]
    lacking = {
        name: [fed for fed in federations if not each.get(fed)] for name, each in there.items()
    }
    methods = tuple(name for name, feds in lacking.items() if not feds)
    seeds = {
        fed: tuple(sorted(set.intersection(*(set(there[name][fed]) for name in methods))))
        for fed in federations
    }
    kept = tuple(fed for fed in federations if seeds[fed])
    if not kept or len(methods) < 2:
        return None
    values = [
        [float(np.mean([there[name][fed][seed] for seed in seeds[fed]])) for name in methods]
        for fed in kept
    ]
    left_out = {name: f"nothing on {', '.join(feds)}" for name, feds in lacking.items() if feds}
    return Block(methods, kept, {fed: seeds[fed] for fed in kept}, np.array(values), left_out)


def ranks(values: Floats) -> Floats:
    """[federations, methods]: 1 for the highest value of a row; equal values share their ranks.

    A method without a value (NaN: every user's model diverged) is last.
    """
    known = np.where(np.isnan(values), -np.inf, values)
    found: Floats = scipy.stats.rankdata(-known, axis=1, method="average")
    return found


@dataclass(frozen=True)
class Friedman:
    """Whether the methods differ at all: Friedman's χ², and Iman and Davenport's F made of it.

    F is the one to read: χ² is too careful (Demšar, sec. 3.2.2).
    """

    chi2: float
    p_chi2: float
    f: float
    p: float

    def to_json(self) -> dict[str, float | None]:
        """Plain values; None stands for an infinite F: one order everywhere."""
        return {k: v if math.isfinite(v) else None for k, v in asdict(self).items()}


def friedman(table: Floats) -> Friedman:
    """The test on ranks [federations, methods], corrected for ties."""
    n, k = table.shape
    if n < 2 or k < 3:
        raise UcflError(f"Friedman's test needs 2 federations and 3 methods, not {n} and {k}.")
    squares = float((table**2).sum())  # n k (k + 1) (2 k + 1) / 6, less what ties take
    expected = n * k * (k + 1) ** 2 / 4
    if math.isclose(squares, expected):  # all methods are equal everywhere
        return Friedman(0.0, 1.0, 0.0, 1.0)
    statistic = (k - 1) * float(((table.sum(0) - n * (k + 1) / 2) ** 2).sum())
    statistic /= squares - expected
    most = n * (k - 1)
    ratio = math.inf if math.isclose(statistic, most) else (n - 1) * statistic / (most - statistic)
    return Friedman(
        statistic,
        float(scipy.stats.chi2.sf(statistic, k - 1)),
        ratio,
        float(scipy.stats.f.sf(ratio, k - 1, (k - 1) * (n - 1))),
    )


def nemenyi_q(methods: int, alpha: float = ALPHA) -> float:
    """Nemenyi's critical value: the studentized range's, over √2 (Demšar, table 5)."""
    if methods < 2:
        raise UcflError(f"at least two methods are compared, not {methods}.")
    return float(scipy.stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)


def critical_difference(methods: int, federations: int, alpha: float = ALPHA) -> float:
    """How far apart two average ranks must be to differ: q √(k (k + 1) / (6 N))."""
    if federations < 1:
        raise UcflError("ranks are averaged over at least one federation.")
    return nemenyi_q(methods, alpha) * math.sqrt(methods * (methods + 1) / (6 * federations))


def alike(average: Mapping[str, float], difference: float) -> list[tuple[str, ...]]:
    """The largest sets of methods, best first, in which no two average ranks differ by so much."""
    names = sorted(average, key=lambda name: average[name])
    found: list[tuple[str, ...]] = []
    for start, first in enumerate(names):
        near = [name for name in names[start:] if average[name] - average[first] < difference]
        if len(near) > 1 and not (found and set(near) <= set(found[-1])):
            found.append(tuple(near))
    return found


def signed_rank(differences: Floats) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test: is a difference as likely as its
    opposite?

    Differences of zero count half on either side (Demšar, sec. 3.1.3). Unlike average ranks, it
    does not depend on which other methods are in the comparison (Benavoli et al., JMLR 17, 2016).
    """
    if not np.any(differences):
        return 1.0
    return float(scipy.stats.wilcoxon(differences, zero_method="zsplit").pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values of tests made together, by Holm's step-down procedure, the smallest first.

    The chance that any of those below α is a false alarm is at most α.
    """
    ordered = sorted(p_values, key=lambda name: p_values[name])
    found: dict[str, float] = {}
    least = 0.0
    for place, name in enumerate(ordered):
        least = max(least, min(1.0, (len(ordered) - place) * p_values[name]))
        found[name] = least
    return found
