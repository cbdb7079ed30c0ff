"""How many personalised downlink streams, and who listens to which (paper, sec. IV-B and IV-C)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucfl.collaboration.mixing import Mixing
from ucfl.errors import UcflError, check_name

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Silhouettes this close count as equal, and the fewest streams win. On EMNIST with rotations a
#: fifth stream for one odd user out of 100 raised the silhouette by 0.002 to 0.004.
NEARLY = 0.01

#: Streams up to which every k is tried where trying them all would take long: nobody could afford
#: more broadcasts in a round.
MOST_STREAMS = 100
#: Users above which clusterings are computed in fewer dimensions, and silhouettes on a sample.
LARGE = 2000
#: Those dimensions, and that sample.
DIMENSIONS, SAMPLE = 200, 2000

#: Squares of weights up to here can be added up.
LARGEST_WEIGHT = 1e150

#: c(k, s): the utility of k streams whose clustering has silhouette s (Algorithm 2).
Tradeoff = Callable[[int, float], float]


@dataclass(frozen=True)
class StreamPlan:
    """k streams: each user's stream, each stream's aggregation rule, and why k.

    ``labels`` [m] gives each user's stream, ``centroids`` [k, m] the weights of each stream;
    ``silhouettes`` and ``scores`` map every k that was tried to s_k and to c(k, s_k); ``weights``
    [m, m] is W itself.
    """

    count: int
    labels: Labels
    centroids: Floats
    silhouettes: dict[int, float]
    scores: dict[int, float]
    weights: Floats

    def mixing(self) -> Mixing:
        """The aggregation rule of the plan: group broadcast of the centroids' models."""
        return Mixing(torch.from_numpy(self.centroids), torch.from_numpy(self.labels))


def choose_streams(
    weights: NDArray[Any] | Tensor,
    tradeoff: str | Tradeoff | None = None,
    max_streams: int | None = None,
    seed: int = 0,
) -> StreamPlan:
    """Algorithm 2: cluster the rows of W for k = 1, 2, …; return argmax_k c(k, s_k).

    The smallest of equals wins, and named trade-offs that differ by under 0.01 are equal. k = 1 has
    no silhouette (0 by definition), k = m has 0 too.

    Args:
        weights: W [m, m].
        tradeoff: A function c(k, s), or the name of one (see :func:`tradeoff_function`).
        max_streams: k stops there, and at the number of rows that differ.
        seed: Of k-means.

    Examples:
        >>> import numpy as np
        >>> alike = np.kron(np.eye(2), np.ones((3, 3))) + 0.1  # two groups of three users
        >>> plan = choose_streams(alike / alike.sum(1, keepdims=True) + 1e-6 * np.eye(6))
        >>> plan.count, plan.labels.tolist()
        (2, [0, 0, 0, 1, 1, 1])
    """
    rows = _rows(weights)
    score = tradeoff if callable(tradeoff) else tradeoff_function(tradeoff, len(rows))
    slack = 0.0 if callable(tradeoff) else NEARLY
    tried = stream_choices(rows, max_streams, seed)
    silhouettes = {k: silhouette for k, (silhouette, _) in tried.items()}
    scores = {k: float(score(k, s)) for k, s in silhouettes.items()}
    best = fewest(scores, slack)
    labels = tried[best][1]
    return StreamPlan(best, labels, centroids(rows, labels), silhouettes, scores, rows)


def fewest(scores: Mapping[int, float], slack: float) -> int:
    """The smallest k whose score is at most ``slack`` under the highest."""
    return min(k for k in scores if scores[k] >= max(scores.values()) - slack)


def stream_choices(
    weights: NDArray[Any] | Tensor, max_streams: int | None = None, seed: int = 0
) -> dict[int, tuple[float, Labels]]:
    """Every k from 1 to ``max_streams`` with its silhouette and each user's stream.

    k stops at the number of rows of W that differ: more streams would repeat each other.
    """
    if max_streams is not None and max_streams < 1:
        raise UcflError(f"at least one stream is needed, not {max_streams}.")
    clusterings = clusterings_of(_rows(weights), seed)
    most = min(max_streams or clusterings.most, clusterings.most)
    tried = {k: clusterings.labels(k) for k in range(1, most + 1)}
    return {k: (clusterings.silhouette(labels), labels) for k, labels in tried.items()}


def fixed_streams(weights: NDArray[Any] | Tensor, count: int, seed: int = 0) -> StreamPlan:
    """The plan with ``count`` streams; as many as users means a stream for each."""
    rows = _rows(weights)
    if not 1 <= count <= len(rows):
        raise UcflError(f"{count} streams do not fit {len(rows)} users: choose 1 to {len(rows)}.")
    if count == len(rows):
        own = np.arange(len(rows))
        return StreamPlan(count, own, rows, {count: 0.0}, {}, rows)
    clusterings = clusterings_of(rows, seed)
    labels = clusterings.labels(min(count, clusterings.most))
    means = centroids(rows, labels)
    return StreamPlan(len(means), labels, means, {count: clusterings.silhouette(labels)}, {}, rows)


def centroids(rows: Floats, labels: Labels) -> Floats:
    """The mean row of each cluster: the stream's aggregation rule."""
    member = np.eye(int(labels.max()) + 1)[labels]
    means: Floats = member.T @ rows / member.sum(0)[:, None]
    return means


def tradeoff_function(name: str | None, users: int) -> Tradeoff:
    """A named trade-off c(k, s).

    - ``silhouette``: s, the quality of the clustering alone;
    - ``silhouette-minus-cost``: s − λ k / m with λ = 0.5, or ``silhouette-minus-cost:λ``.
    """
    word, colon, text = (name or "silhouette").partition(":")
    check_name("trade-off", word, ("silhouette", "silhouette-minus-cost"))
    if word == "silhouette":
        if colon:
            raise UcflError("the trade-off 'silhouette' takes no number.")
        return lambda k, s: s
    price = number_in(f"{word}:{text}") if colon else 0.5
    return lambda k, s: s - price * k / users


def number_in(name: str) -> float:
    """λ of a trade-off that somebody typed as ``name:λ``."""
    word, _, text = name.partition(":")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UcflError(f"write a number in {name!r}, such as {word}:0.5.")
    return number


def clusterings_of(points: Floats, seed: int = 0) -> Clusterings | LargeClusterings:
    """Exact up to a few thousand points, approximate beyond."""
    return Clusterings(points, seed) if len(points) <= LARGE else LargeClusterings(points, seed)


class LargeClusterings:
    """k-means of very many points.

    W of m users has m columns, but few directions in which its rows differ: the points are taken
    to their first 200 principal components (randomised), where scikit-learn's k-means runs, and
    the silhouette is the mean over 2,000 points drawn at random (standard error below 0.01).
    """

    def __init__(self, points: Floats, seed: int = 0) -> None:
        from sklearn.decomposition import PCA  # scikit-learn takes seconds to import

        reduced = PCA(DIMENSIONS, svd_solver="randomized", random_state=seed).fit_transform(points)
        self._points: Floats = np.ascontiguousarray(reduced)
        self._seed = seed
        drawn = np.random.default_rng(seed).choice(len(points), SAMPLE, replace=False)
        self._sample = np.sort(drawn)
        self._distance = scipy.spatial.distance.cdist(self._points[self._sample], self._points)
        self.most = len(points)

    def labels(self, k: int) -> Labels:
        """The best clustering of three starts."""
        from sklearn.cluster import KMeans

        found = KMeans(k, n_init=3, random_state=self._seed).fit(self._points)
        return _in_order(found.labels_.astype(np.int64))

    def silhouette(self, labels: Labels) -> float:
        """The mean silhouette of the sample."""
        k = int(labels.max()) + 1
        sums = self._distance @ np.eye(k)[labels]
        return _silhouette(sums.T, labels[self._sample], np.bincount(labels).astype(np.float64))


class Clusterings:
    """k-means of the same points for any k, on their pairwise distances.

    The distances are computed once and shared by every k: ‖x − c‖² = mean_j ‖x − x_j‖² − const
    over the members x_j of the centroid c, so an iteration costs m² whatever k is, where the
    usual one costs m² k. Lloyd's iterations start from Ward's hierarchical clustering, cut at k,
    and from k-means++ seeds, of which those for k + 1 extend those for k; the lowest inertia wins.
    """

    def __init__(self, points: Floats, seed: int = 0) -> None:
        self._squared = scipy.spatial.distance.squareform(
            scipy.spatial.distance.pdist(points, "sqeuclidean")
        )
        self._distance = np.sqrt(self._squared)
        # Rows that differ by rounding only are one point.
        close = self._squared <= 1e-24 * max(1.0, float((points**2).sum(1).max()))
        self._first = close.argmax(1)
        self.most = len(np.unique(self._first))
        m = len(points)
        self._tree = scipy.cluster.hierarchy.ward(points) if m > 1 else None
        starts = int(np.clip(1e6 // m**2, 1, 10))
        generators = np.random.default_rng(seed).spawn(starts)
        self._seeds = [_nested_seeds(self._squared, self.most, rng) for rng in generators]

    def labels(self, k: int) -> Labels:
        """The best clustering found into k groups, numbered in order of appearance."""
        if k == self.most:
            return _in_order(self._first)
        starts = [self._nearest(seeds[:k]) for seeds in self._seeds]
        if self._tree is not None:
            starts.append(
                scipy.cluster.hierarchy.fcluster(self._tree, k, "maxclust").astype(np.int64) - 1
            )
        ends = [self._lloyd(start, k) for start in starts]
        return _in_order(min(ends, key=lambda end: end[0])[1])

    def silhouette(self, labels: Labels) -> float:
        """The mean silhouette (paper, sec. IV-C); a user alone in its cluster has 0."""
        sums, sizes = _sums_by_label(self._distance, labels, int(labels.max()) + 1)
        return _silhouette(sums, labels, sizes)

    def _nearest(self, seeds: NDArray[np.int64]) -> Labels:
        nearest: Labels = self._squared[:, seeds].argmin(1)
        return nearest

    def _lloyd(self, labels: Labels, k: int, iterations: int = 100) -> tuple[float, Labels]:
        """Lloyd's iterations to the end; inertia and labels.

        An emptied cluster takes the point that is served worst.
        """
        everyone = np.arange(len(labels))
        for _ in range(iterations):
            sums, sizes = _sums_by_label(self._squared, labels, k)
            means = sums / np.maximum(sizes, 1)[:, None]
            spread = np.bincount(labels, weights=means[labels, everyone], minlength=k)
            constant = np.where(sizes > 0, spread / np.maximum(sizes, 1) / 2, -np.inf)
            means -= constant[:, None]  # now squared distances to the centroids
            fresh = means.argmin(0)
            near = means[fresh, everyone]
            # A point moves only to what is truly nearer: ties must not make it wander.
            stays = means[labels, everyone] <= near + 1e-15
            fresh = np.where(stays, labels, fresh)
            for empty in np.flatnonzero(np.bincount(fresh, minlength=k) == 0):
                crowded = np.bincount(fresh, minlength=k)[fresh] > 1
                worst = int(np.where(crowded, near, -np.inf).argmax())
                fresh[worst], near[worst] = empty, 0.0
            if np.array_equal(fresh, labels):
                break
            labels = fresh
        return float(near.sum()), labels


def _silhouette(sums: Floats, labels: Labels, sizes: Floats) -> float:
    """From [k, n] summed distances of points to clusters, the points' labels and cluster sizes."""
    if len(sizes) == 1:
        return 0.0
    own = sizes[labels]
    here = labels, np.arange(len(labels))
    inside = sums[here] / np.maximum(own - 1, 1)
    means = sums / sizes[:, None]
    means[here] = np.inf
    outside = means.min(0)
    largest = np.maximum(inside, outside)
    score = np.divide(outside - inside, largest, out=np.zeros_like(inside), where=largest > 0)
    return float(np.where(own > 1, score, 0.0).mean())


def _nested_seeds(squared: Floats, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k-means++ seeds: each next one far from all before it, with probability ∝ distance²."""
    seeds = [int(rng.integers(len(squared)))]
    nearest = squared[seeds[0]].copy()
    while len(seeds) < most:
        total = nearest.sum()
        if total <= 0:
            break
        seeds.append(int(np.searchsorted(np.cumsum(nearest), rng.random() * total, side="right")))
        nearest = np.minimum(nearest, squared[seeds[-1]])
    return np.array(seeds)


def _sums_by_label(matrix: Floats, labels: Labels, k: int) -> tuple[Floats, Floats]:
    """[k, m] sums of a symmetric matrix's rows by label, and [k] cluster sizes."""
    sizes = np.bincount(labels, minlength=k)
    order = np.argsort(labels, kind="stable")
    filled = np.flatnonzero(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes[filled])[:-1]])
    sums = np.zeros((k, len(matrix)))
    sums[filled] = np.add.reduceat(matrix[order], starts, axis=0)
    return sums, sizes.astype(np.float64)


def _in_order(labels: Labels) -> Labels:
    """The same clusters, numbered in the order in which they first appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _rows(weights: NDArray[Any] | Tensor) -> Floats:
    rows = np.asarray(torch.as_tensor(weights).double().cpu().numpy())
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1] or len(rows) == 0:
        raise UcflError(f"W must be a square matrix of weights, not of shape {rows.shape}.")
    if not np.isfinite(rows).all() or (rows < 0).any():
        raise UcflError("W must hold finite weights that are not negative.")
    if len(rows) * rows.max() > LARGEST_WEIGHT:
        raise UcflError("W must hold shares of users' models; its largest weight overflows.")
    return rows
