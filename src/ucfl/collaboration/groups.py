"""Do users fall into groups? A test of class prototypes against one population, with its level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ucfl.collaboration.prototypes import ClassMeans, Floats, Labels, Pairs, nearest_groups

#: Populations that are drawn for a test, and the share of them that may be as grouped as the users
#: are: the probability with which users of one population are split. Where classes of 1 and of 1000
#: examples are side by side it is larger (benchmarks/group_sizes.py).
DRAWS, LEVEL = 99, 0.01
#: The most groups that one split makes, each of which is tested again.
MOST = 12
#: Users among whom groups are looked for; more are drawn by the seed, and others follow.
SOUGHT = 128
#: The most often that users are put into the nearest cluster again.
ROUNDS = 20
#: Fewer users cannot be told from one population.
FEWEST = 4


@dataclass(frozen=True, eq=False)
class Groups:
    """``labels`` [m] of the groups that were found, and the test of the first split.

    ``p_value`` is the share of populations without groups that are as grouped as the users;
    ``spread`` is what is left of users' differences inside the groups, in units of their noise.
    """

    labels: Labels
    p_value: float
    spread: float

    @property
    def count(self) -> int:
        """k."""
        return len(np.unique(self.labels))


def find_groups(sample: ClassMeans, seed: int = 0) -> Groups:
    """The groups of users whose classes mean the same, k = 1 among the answers.

    Users are split as long as they are more grouped than users of one population would be (see
    :func:`split`), and each of the parts is looked at in the same way.
    """
    m = len(sample)
    rng = np.random.default_rng([seed, m])
    sought = np.sort(rng.choice(m, SOUGHT, replace=False)) if m > SOUGHT else np.arange(m)
    # Of who shares no class with anybody, nothing is known: they follow.
    known = sample.of_users(sought).pairs().weight.any(1)
    sought = sought[known] if known.any() else sought[:1]
    some = sample.of_users(sought)
    p_value, waiting = split(some, rng)
    # Who is one population is not asked again: two tests would be wrong twice as often.
    found, waiting = ([], waiting) if len(waiting) > 1 else (waiting, [])
    while waiting:
        part = waiting.pop()
        _, smaller = split(some.of_users(part), rng)
        if len(smaller) == 1:
            found.append(part)
        else:
            waiting += [part[each] for each in smaller]
    own = np.zeros(len(sought), dtype=np.int64)
    for number, part in enumerate(sorted(found, key=lambda part: int(part[0]))):
        own[part] = number
    labels = np.zeros(m, dtype=np.int64)
    labels[sought] = own
    others = np.setdiff1d(np.arange(m), sought)
    if len(others):
        labels[others] = nearest_groups(sample.of_users(others).pairs_with(some), own)
    return Groups(labels, p_value, some.pairs().spread(own))


def split(sample: ClassMeans, rng: np.random.Generator) -> tuple[float, list[Labels]]:
    """The p-value of a split of the users, and its parts: all of them in one if it is chance.

    The users of k clusters (weighted average linkage of d) are as near to each other as L_k =
    log (within_k + noise) / (total + noise) says. For one population with the users' own spread
    and noise (:func:`population`), L_k has a mean and a deviation; the test is the largest of the
    users' standardised differences over k, against those of the drawn populations themselves. (The
    idea is that of SigClust, Liu et al., JASA 2008, and of the gap statistic, Tibshirani et al.,
    JRSS B 2001.) k is the smallest whose difference is within a deviation of the largest one;
    users who are nearer to another cluster than to their own then go there.
    """
    m = len(sample)
    everyone = [np.arange(m)]
    pairs = sample.pairs()
    most = min(MOST, m - 1)
    if m < FEWEST or most < 2 or not pairs.weight.any() or not pairs.noise:
        return 1.0, everyone
    clusters = linkage(pairs, most)
    own = tightness(pairs, clusters)
    drawn = np.empty((DRAWS, len(own)))
    for draw in range(DRAWS):
        some = sample.pairs(population(sample, pairs, rng))
        drawn[draw] = tightness(some, linkage(some, most))
    mean, deviation = drawn.mean(0), np.maximum(drawn.std(0), 1e-12)
    apart = ((mean - own) / deviation).max()
    p_value = (1 + int((((mean - drawn) / deviation).max(1) >= apart).sum())) / (1 + DRAWS)
    if p_value > LEVEL:
        return p_value, everyone
    gap = mean - own
    best = int((gap >= gap.max() - deviation[gap.argmax()]).argmax())
    labels = settled(pairs, clusters[best])
    return p_value, [np.flatnonzero(labels == label) for label in np.unique(labels)]


def settled(pairs: Pairs, labels: Labels) -> Labels:
    """The clusters with every user in the one whose others it is nearest to, as far as that goes.

    Linkage joins clusters by their means and never looks back: a user with few examples may have
    been joined by chance.
    """
    for _ in range(ROUNDS):
        fresh = nearest_groups(pairs, labels)
        if np.array_equal(fresh, labels) or len(np.unique(fresh)) < len(np.unique(labels)):
            break
        labels = fresh
    return labels


def population(sample: ClassMeans, pairs: Pairs, rng: np.random.Generator) -> Floats:
    """Prototypes [m, C, F] of users of one population, as spread and as noisy as these.

    y_ic = σ_ic Σ_j (√ρ g_ij + √(1 − ρ) h_ijc) z_jc / √(m_c − 1) with g and h standard normal:
    z are the users' deviations from the classes' means over their standard deviation σ, and ρ is
    the share of it that is the user's own (common to its classes, hence g) and not noise (h). So y
    is normal with the covariance of the users' prototypes, and has no groups.
    """
    there, m_c = sample.there, np.maximum(sample.there.sum(0), 2)
    apart = np.where(there[..., None], sample.means - sample.middle, 0.0)
    left = np.where(there, 1 - 1 / m_c, 0.0)
    own = ((apart**2).sum(2) - sample.noise * left).sum() / max(left.sum(), 1e-300)
    sigma = np.sqrt(max(own, 0.0) + sample.noise)
    z = (apart / np.where(sigma > 0, sigma, 1.0)[..., None]).transpose(1, 0, 2)
    spread = max(pairs.spread(), 0.0)
    rho = spread / (1 + spread)
    classes, m, _ = z.shape
    normal = np.sqrt(rho) * rng.standard_normal((1, m, m))
    normal = normal + np.sqrt(1 - rho) * rng.standard_normal((classes, m, m))
    y = (normal @ z).transpose(1, 0, 2) / np.sqrt(m_c - 1)[None, :, None]
    return np.asarray(np.where(there[..., None], y * sigma[..., None], 0.0))


def linkage(pairs: Pairs, most: int) -> list[Labels]:
    """Labels [m] for k = 2 … ``most`` clusters: average linkage, each pair with its weight.

    The distance of two clusters is Σ total_ij / Σ weight_ij over their pairs; clusters without a
    common class come together last, the smallest first.
    """
    total, weight = pairs.total.copy(), pairs.weight.copy()
    m = len(total)
    labels, size, alive = np.arange(m), np.ones(m), np.ones(m, dtype=bool)
    mean = np.where(weight > 0, total / np.maximum(weight, 1e-300), np.inf)
    np.fill_diagonal(mean, np.inf)
    nearest = mean.argmin(1)
    least = mean[np.arange(m), nearest]
    found = []
    for count in range(m, 1, -1):
        if count <= most:
            found.append(np.unique(labels, return_inverse=True)[1].astype(np.int64))
        a = int(np.where(alive, least, np.inf).argmin())
        b = int(nearest[a])
        if np.isinf(least[a]):
            a, b = np.argsort(np.where(alive, size, np.inf), kind="stable")[:2].tolist()
        total[a] += total[b]
        weight[a] += weight[b]
        total[a, a] = weight[a, a] = 0
        total[:, a], weight[:, a] = total[a], weight[a]
        alive[b], size[a] = False, size[a] + size[b]
        labels[labels == b] = a
        mean[b] = mean[:, b] = np.inf
        known = (weight[a] > 0) & alive
        mean[a] = np.where(known, total[a] / np.maximum(weight[a], 1e-300), np.inf)
        mean[a, a] = np.inf
        mean[:, a] = mean[a]
        changed = alive & ((nearest == a) | (nearest == b))
        changed[a] = True
        nearest[changed] = mean[changed].argmin(1)
        least[changed] = mean[changed, nearest[changed]]
        nearer = alive & (mean[:, a] < least)
        nearest[nearer], least[nearer] = a, mean[nearer, a]
    return found[::-1]


def tightness(pairs: Pairs, clusters: list[Labels]) -> Floats:
    """L_k = log (within_k + noise) / (total + noise) of each clustering.

    ``within`` is the mean over users of the mean d_ij to the others of its cluster; a user who is
    alone, or shares no class with its cluster, counts as the mean of all.
    """
    everyone = float(pairs.total.sum() / pairs.weight.sum())
    floor = 1e-3 * pairs.noise
    found = []
    for labels in clusters:
        inside = labels[:, None] == labels
        weight = (pairs.weight * inside).sum(1)
        own = (pairs.total * inside).sum(1) / np.maximum(weight, 1e-300)
        within = float(np.where(weight > 0, own, everyone).mean())
        found.append(max(within + pairs.noise, floor) / max(everyone + pairs.noise, floor))
    return np.log(found)
