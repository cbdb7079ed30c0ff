"""Theorems 1 and 2: how well a mixture of users' data serves one user, and the best mixture.

Both bounds grow with q = Σ_j w_j² / n_j (estimation) and with t = Σ_j w_j d_j (bias). So their
minimisers on the simplex trade one against the other and lie on the path

    w(λ) = argmin ½ Σ_j w_j² / n_j + λ Σ_j w_j d_j   =>   w_j = n_j (ν − λ d_j)₊,  Σ_j w_j = 1,

which is exact and sorted in one pass. Theorem 1 is convex; Theorem 2 is not (the root of a linear
function is concave), but a search over the one number λ finds its minimum all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from ucfl.errors import UcflError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """What the theorems assume: loss range B, VC dimension d, confidence 1 − δ, and γ.

    ``form`` says which estimation term is meant. ``printed`` is the paper's, whose complexity has a
    factor 1/√N that Massart's lemma does not give; ``massart`` is without it.
    """

    loss_range: float = 1.0
    vc_dimension: float = 1.0
    delta: float = 0.05
    gamma: float = 0.0
    form: Literal["printed", "massart"] = "printed"

    def __post_init__(self) -> None:
        if not (self.vc_dimension > 0 and self.loss_range > 0 and 0 < self.delta < 1):
            raise UcflError(
                "a VC dimension and a loss range are greater than 0, and delta lies between 0 and "
                "1; give such values."
            )

    def log_growth(self, points: float) -> float:
        """log of how many ways N points can be labelled: d log(eN/d), and N log 2 at most.

        Sauer's lemma is for d ≤ N. Beyond it, and where it says more, there are 2^N labellings: a
        larger class never has a smaller bound.
        """
        d, most = self.vc_dimension, points * math.log(2)
        return most if d >= points else min(d * (1 + math.log(points / d)), most)

    def estimation(self, points: float) -> float:
        """The factor of √(Σ w²/n): B (√(2 log G) + √log(2/δ)), ``printed`` with √(2/N · log G).

        log G is :meth:`log_growth` of the N points.
        """
        growth = 2 * self.log_growth(points)
        complexity = math.sqrt(growth / points if self.form == "printed" else growth)
        return self.loss_range * (complexity + math.sqrt(math.log(2 / self.delta)))


def theorem_1(weights: Any, sizes: Any, discrepancies: Any, setting: Setting) -> float:
    """Right-hand side of Theorem 1 for one user's weights and its discrepancies d_F(P_i, P_j)."""
    w, n, d = _vectors(weights, sizes, discrepancies)
    estimation = setting.estimation(float(n.sum())) * math.sqrt(float((w**2 / n).sum()))
    return estimation + 2 * float(w @ d) + 2 * setting.gamma


def theorem_2(weights: Any, sizes: Any, divergences: Any, setting: Setting) -> float:
    """Right-hand side of Theorem 2 for one user's weights and its divergences D_JS(P_i ‖ P_j)."""
    w, n, d = _vectors(weights, sizes, divergences)
    estimation = setting.estimation(float(n.sum())) * math.sqrt(float((w**2 / n).sum()))
    return estimation + setting.loss_range * math.sqrt(2 * float(w @ d))


def optimal_weights(
    sizes: Any, divergences: Any, setting: Setting, theorem: Literal[1, 2] = 1
) -> Floats:
    """The weights on the simplex that minimise a theorem's bound.

    ``divergences`` of one user ([m]) give its weights ([m]); a matrix ([m, m]) gives W.
    """
    table = np.asarray(divergences, dtype=np.float64)
    if table.ndim == 2:
        return np.stack([optimal_weights(sizes, row, setting, theorem) for row in table])
    _, n, d = _vectors(np.ones(len(table)), sizes, table)
    bound = theorem_1 if theorem == 1 else theorem_2

    def value(log_slope: float) -> float:
        return bound(_on_path(n, d, math.exp(log_slope)), n, d, setting)

    # λ d_j is compared with ν, which lies between 1/Σn and 1/n_j: outside, the ends of the path.
    positive = d[d > 0]
    if len(positive) == 0:
        return _on_path(n, d, 0.0)
    low = math.log(1e-6 / (n.sum() * positive.max()))
    high = math.log(1e6 / (n.min() * positive.min()))
    best = _search(value, low, high, _kinks(n, d))
    candidates = [_on_path(n, d, slope) for slope in (0.0, math.exp(best), math.inf)]
    return min(candidates, key=lambda w: bound(w, n, d, setting))


def jensen_shannon(p: Any, q: Any) -> float:
    """D_JS(P ‖ Q) = KL(P ‖ M) + KL(Q ‖ M), M = (P + Q)/2: as in the paper's text, without a half.

    (Its appendix has the half; the text's is what Theorem 2 is stated with.)
    """
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    middle = (p + q) / 2
    return float(scipy.special.rel_entr(p, middle).sum() + scipy.special.rel_entr(q, middle).sum())


def label_divergences(counts: Any) -> Floats:
    """D_JS between users from their label counts [m, classes].

    Under label shift P_i(x | y) is the same for all, so the divergence of the joint distributions
    is that of the labels: closed form, no model needed.
    """
    table = np.asarray(counts, dtype=np.float64)
    totals = table.sum(1, keepdims=True)
    if table.ndim != 2 or (table < 0).any() or (totals == 0).any():
        raise UcflError("label counts must be [users, classes], not negative, with no empty user.")
    shares = table / totals
    return np.array([[jensen_shannon(p, q) for q in shares] for p in shares])


def _on_path(n: Floats, d: Floats, slope: float) -> Floats:
    """w_j = n_j (ν − λ d_j)₊ with Σ w = 1; λ = ∞ keeps the users with the smallest d only."""
    if math.isinf(slope):
        weights = np.where(d == d.min(), n, 0.0)
        return np.asarray(weights / weights.sum())
    order = np.argsort(d, kind="stable")
    mass, cost = np.cumsum(n[order]), np.cumsum(n[order] * d[order])
    level = (1 + slope * cost) / mass  # ν, if the first r users are the support
    support = int(np.flatnonzero(level > slope * d[order])[-1])
    weights = n * np.maximum(level[support] - slope * d, 0.0)
    return np.asarray(weights / weights.sum())


def _kinks(n: Floats, d: Floats) -> Floats:
    """Logarithms of the λ at which the path gives a user up; between them it is smooth."""
    order = np.argsort(d, kind="stable")
    mass, cost = np.cumsum(n[order])[:-1], np.cumsum(n[order] * d[order])[:-1]
    steps = d[order][1:] * mass - cost
    return -np.log(steps[steps > 0])


def _search(value: Callable[[float], float], low: float, high: float, kinks: Floats) -> float:
    """The minimum of a function of one number: a grid, then golden section beside its best.

    The grid has the function's kinks, so that no step of the section straddles one. Behind the last
    one the function is constant: of points that are equal but for rounding, any may be the lowest,
    and the minimum is beside the first or the last of them.
    """
    grid = np.sort([*np.linspace(low, high, 257), *kinks])
    values = np.array([value(x) for x in grid])
    best = int(np.argmin(values))
    found = [(float(values[best]), float(grid[best]))]
    equal = np.flatnonzero(values <= values[best] + 1e-12 * (1 + abs(values[best])))
    for left in sorted({place + step for place in (equal[0], equal[-1]) for step in (-1, 0)}):
        if 0 <= left < len(grid) - 1 and grid[left] < grid[left + 1]:
            ends = (grid[left], grid[left + 1])
            near = scipy.optimize.minimize_scalar(
                value, bounds=ends, method="bounded", options={"xatol": 1e-10}
            )
            found.append((float(near.fun), float(near.x)))
    return min(found)[1]


def _vectors(weights: Any, sizes: Any, divergences: Any) -> tuple[Floats, Floats, Floats]:
    w, n, d = (np.asarray(a, dtype=np.float64) for a in (weights, sizes, divergences))
    if not (w.shape == n.shape == d.shape and w.ndim == 1):
        raise UcflError("weights, sizes and divergences must be vectors of one length.")
    if (n <= 0).any() or (d < 0).any() or (w < 0).any():
        raise UcflError("sizes must be positive; weights and divergences not negative.")
    return w, n, d
