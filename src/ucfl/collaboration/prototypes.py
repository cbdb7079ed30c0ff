"""How far apart users' class prototypes are, with the noise of their own estimates taken out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Examples' worth of the class's common variance in every user's own, which rests on few examples.
COMMON = 2.0
#: The most of the difference between two groups that may be left once classes are renamed, for
#: their inputs to count as alike; chosen on seeds 0 to 2 of rotations and permutations. How often
#: it errs on others: ``right_bodies`` of benchmarks/groups.py.
RENAMED = 0.15


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """p_ic ``means`` [m, C, F], their ``noise`` [m, C] = v_ic / n_ic, and ``counts`` n_ic [m, C].

    ``noise`` is the variance of a prototype about what infinite data would give, summed over
    features.
    """

    means: Floats
    noise: Floats
    counts: Floats

    @classmethod
    def of(cls, means: Any, variances: Any, counts: Any, added: float = 0.0) -> ClassMeans:
        """From what users send; ``added`` is the variance of noise on each sum of features.

        A variance is that of the user's own examples and of :data:`COMMON` ones of everybody's.
        """
        p, v, n = (np.asarray(a, dtype=np.float64) for a in (means, variances, counts))
        free = np.maximum(n - 1, 0)
        everyone = (free * v).sum() / max(free.sum(), 1e-300)
        within = free.sum(0)
        common = np.where(within > 0, (free * v).sum(0) / np.maximum(within, 1e-300), everyone)
        shrunk = (free * v + COMMON * common) / (free + COMMON)
        at_least_one = np.maximum(n, 1)
        noise = np.where(n > 0, shrunk / at_least_one + added / at_least_one**2, 0.0)
        return cls(np.where((n > 0)[..., None], p, 0.0), noise, n)

    def __len__(self) -> int:
        return len(self.counts)

    def of_users(self, users: Any) -> ClassMeans:
        """Some of the users."""
        return ClassMeans(self.means[users], self.noise[users], self.counts[users])

    @property
    def there(self) -> NDArray[np.bool_]:
        """[m, C]: whether a user has the class."""
        return self.counts > 0

    @cached_property
    def middle(self) -> Floats:
        """[C, F]: the mean of each class over everybody's examples."""
        total = np.maximum(self.counts.sum(0), 1e-300)
        return np.asarray((self.means * self.counts[..., None]).sum(0) / total[:, None])

    def pairs(self, means: Floats | None = None) -> Pairs:
        """All pairs of users; of other ``means`` [m, C, F] with the same counts and noise."""
        sample = self if means is None else ClassMeans(means, self.noise, self.counts)
        found = sample.pairs_with(sample)
        for each in (found.total, found.weight, found.pure):
            np.fill_diagonal(each, 0.0)
        return found

    def pairs_with(self, others: ClassMeans) -> Pairs:
        """Each of these users (rows) with each of some others (columns).

        Class by class, so that memory is that of the pairs and not of C times as many.
        """
        found = [np.zeros((len(self), len(others))) for _ in range(3)]
        for c in range(self.counts.shape[1]):
            i, j = np.flatnonzero(self.there[:, c]), np.flatnonzero(others.there[:, c])
            if not len(i) or not len(j):
                continue
            middle = self.means[i, c].mean(0)
            p, q = self.means[i, c] - middle, others.means[j, c] - middle
            pure = self.noise[i, c][:, None] + others.noise[j, c]
            apart = (p**2).sum(1)[:, None] + (q**2).sum(1) - 2 * p @ q.T - pure
            weight = 1 / (1 / self.counts[i, c][:, None] + 1 / others.counts[j, c])
            for whole, part in zip(found, (weight * apart, weight, weight * pure), strict=True):
                whole[np.ix_(i, j)] += part
        return Pairs(*found)


@dataclass(frozen=True, eq=False)
class Pairs:
    """d_ij = total_ij / weight_ij: squared distances of prototypes without their noise.

    d_ij = Σ_c ω_c (‖p_ic − p_jc‖² − noise_ic − noise_jc) / Σ_c ω_c over the classes that both have.
    Its mean is 0 for users who draw from one distribution, whatever their labels are; it may be
    negative. ``pure`` [m, m] is the noise that was taken out, weighted alike.
    """

    total: Floats
    weight: Floats
    pure: Floats

    @property
    def noise(self) -> float:
        """The mean noise of a pair."""
        return float(self.pure.sum()) / max(float(self.weight.sum()), 1e-300)

    @property
    def distances(self) -> Floats:
        """d_ij; NaN for pairs without a common class."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.weight > 0, self.total / self.weight, np.nan))

    def spread(self, labels: Labels | None = None) -> float:
        """The mean d_ij in units of the noise; of pairs inside the groups ``labels``, if given.

        About 0 where users differ by noise alone, 1 where what sets users apart is as large as the
        noise of what their own data says of it.
        """
        inside = 1.0 if labels is None else labels[:, None] == labels[None, :]
        weight = float((self.weight * inside).sum())
        if not weight or not self.noise:
            return 0.0
        return float((self.total * inside).sum()) / weight / self.noise

    def kernel(self, sizes: Floats, width: float, *, own: bool = True) -> Floats:
        """w_ij ∝ n_j exp(−d_ij / (h noise_ij)): eq. 7 with prototypes in the place of gradients.

        h is ``width``. Rows sum to one; where two users have no class in common, nothing is known,
        and they count as far apart as the mean of all. ``own``: rows and columns are the same
        users, each at a distance of 0 from itself.
        """
        everyone = max(float(self.total.sum()), 0.0) / max(float(self.pure.sum()), 1e-300)
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.where(self.pure > 0, np.maximum(self.total, 0) / self.pure, everyone)
        if own:
            np.fill_diagonal(apart, 0.0)
        return np.asarray(scipy.special.softmax(np.log(sizes) - apart / width, axis=1))


def nearest_groups(apart: Pairs, labels: Labels) -> Labels:
    """[q]: the group of the m users ``labels`` that each of q others is nearest to.

    ``apart`` has those others in rows, the users in columns. Who shares no class with anybody goes
    to the largest group.
    """
    groups = np.unique(labels)
    member = (labels[:, None] == groups).astype(np.float64)
    weight = apart.weight @ member
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(weight > 0, (apart.total @ member) / weight, np.inf)
    nearest = groups[mean.argmin(1)]
    largest = groups[member.sum(0).argmax()]
    return np.asarray(np.where(np.isinf(mean).all(1), largest, nearest), dtype=np.int64)


def input_groups(sample: ClassMeans, labels: Labels) -> tuple[Labels, Labels]:
    """[m]: groups of users whose inputs look alike; [m, C]: their names of each other's classes.

    Two of the groups ``labels`` have the same inputs if renaming one's classes explains their
    difference: with prototypes of whole groups, the assignment of classes to classes that fits
    best leaves at most :data:`RENAMED` of the distance under equal names. So do groups without a
    common class, of which nothing is known. A user's row of names says which class of its own is
    class c of the first group with the same inputs.
    """
    groups = np.unique(labels)
    classes = sample.counts.shape[1]
    whole = [_together(sample.of_users(labels == group)) for group in groups]
    alike = np.eye(len(groups), dtype=bool)
    for a, b in itertools.combinations(range(len(groups)), 2):
        alike[a, b] = renamed(whole[a], whole[b])[0] <= RENAMED
    joined = scipy.sparse.csgraph.connected_components(alike, directed=False)[1]
    names = np.tile(np.arange(classes), (len(groups), 1))
    for number in range(len(groups)):
        first = int(np.flatnonzero(joined == joined[number])[0])
        if first != number:
            names[number] = renamed(whole[first], whole[number])[1]
    place = np.searchsorted(groups, labels)
    return np.asarray(joined[place], dtype=np.int64), np.asarray(names[place], dtype=np.int64)


def renamed(one: ClassMeans, other: ClassMeans) -> tuple[float, Labels]:
    """What is left of the distance of two (single) users when classes are renamed to fit best.

    And the names [C]: which class of the other is class c of the one. Classes that either does not
    have keep their names, or get those that are left.
    """
    p, q = one.means[0], other.means[0]
    apart = (p**2).sum(1)[:, None] + (q**2).sum(1) - 2 * p @ q.T
    apart = apart - one.noise[0][:, None] - other.noise[0]
    there = one.there[0][:, None] & other.there[0]
    n, m = (np.maximum(each.counts[0], 1e-300) for each in (one, other))
    weight = np.where(there, 1 / (1 / n[:, None] + 1 / m), 0.0)
    shared = np.diagonal(weight).sum()
    distance = np.diagonal(weight * apart).sum() / max(shared, 1e-300)
    same = np.arange(len(p))
    if not shared or distance <= 0:
        return 0.0, same
    rows, columns = (np.flatnonzero(each.there[0]) for each in (one, other))
    i, j = scipy.optimize.linear_sum_assignment(apart[np.ix_(rows, columns)])
    i, j = rows[i], columns[j]
    names = np.full(len(p), -1)
    names[i] = j
    free = set(same.tolist()) - set(j.tolist())
    for c in np.flatnonzero(names < 0).tolist():
        names[c] = c if c in free else min(free)
        free.discard(int(names[c]))
    return float((weight * apart)[i, j].sum() / weight[i, j].sum() / distance), names


def _together(sample: ClassMeans) -> ClassMeans:
    """One user with everybody's examples."""
    counts = sample.counts.sum(0)
    noise = (sample.noise * sample.counts**2).sum(0) / np.maximum(counts, 1) ** 2
    return ClassMeans(sample.middle[None], noise[None], counts[None])
