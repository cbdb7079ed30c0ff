"""Users' class prototypes, as the server has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ucfl import distributed
from ucfl.collaboration.prototypes import ClassMeans
from ucfl.federation import Federation, Prototypes, reinitialised

#: Untrained networks whose features prototypes are made of: θ⁰, and others that everyone draws by
#: the seed. One alone may happen to see little of what sets users apart (docs/algorithms).
NETWORKS = 4


def untrained(fed: Federation, count: int) -> list[Tensor]:
    """Rows of Θ [m, P]: θ⁰, and further first weights for the same model."""
    others = [reinitialised(fed, number).expand(fed.m, -1) for number in range(1, count)]
    return [fed.initial(), *others]


def sampled(
    found: Sequence[Prototypes], *, added: Sequence[float] = (), alone: bool = False
) -> ClassMeans:
    """Prototypes of several networks as one: features side by side, each in units of its noise.

    Those of all processes' users, or of these ``alone``. ``added`` is the variance of noise on each
    network's sums (:meth:`ClassMeans.of`).
    """
    means, more = [], 0.0
    counts = _of_all(found[0].counts, alone)
    variances = np.zeros_like(counts)
    for number, each in enumerate(found):
        own = _of_all(each.variances, alone)
        scale = float((own * counts).sum() / max(counts.sum(), 1e-300)) or 1.0
        means.append(_of_all(each.means, alone) / scale**0.5)
        variances = variances + own / scale
        more += added[number] / scale if added else 0.0
    return ClassMeans.of(np.concatenate(means, axis=2), variances, counts, more)


def _of_all(rows: Tensor, alone: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray((rows if alone else distributed.gathered(rows)).cpu().numpy())
