"""How long it takes to choose streams over all k, against scikit-learn's plain computation.

Run with: .venv/bin/python benchmarks/streams.py
Plain: KMeans with ten starts and silhouette_score, for every k. For m = 1,000 the plain
computation would take hours, so only ours is timed there.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from ucfl.collaboration import choose_streams, collaboration_weights


def weights(m: int, groups: int, distance: float, seed: int = 0) -> np.ndarray:
    """W of users in groups whose gradients differ, or of users without any structure."""
    rng = np.random.default_rng(seed)
    centres = distance * rng.normal(size=(groups, 50))
    gradients = centres[np.arange(m) * groups // m] + rng.normal(size=(m, 50))
    return collaboration_weights(gradients, np.full(m, 100.0), rng.integers(50, 150, m))


def plain(rows: np.ndarray) -> int:
    scores = {
        k: silhouette_score(rows, KMeans(k, n_init=10, random_state=0).fit(rows).labels_)
        for k in range(2, len(rows))
    }
    return max(scores, key=lambda k: scores[k])


def main() -> None:
    for m, groups, distance in ((100, 4, 1.0), (100, 7, 0.8), (1000, 6, 1.0), (1000, 1, 0.0)):
        rows = weights(m, groups, distance)
        began = time.perf_counter()
        plan = choose_streams(rows)
        ours = time.perf_counter() - began
        line = f"m = {m}, {groups} groups: k = {plan.count} in {ours:.2f} s"
        if m <= 100:
            began = time.perf_counter()
            best = plain(rows)
            theirs = time.perf_counter() - began
            line += (
                f"; scikit-learn k = {best} in {theirs:.2f} s: {theirs / ours:.0f} times as long"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
