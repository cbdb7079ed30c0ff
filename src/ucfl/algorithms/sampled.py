"""Users' class prototypes, as the server has them."""

from __future__ import annotations

from ucfl import distributed
from ucfl.collaboration.prototypes import ClassMeans
from ucfl.federation import Prototypes


def sampled(found: Prototypes, *, added: float = 0.0, alone: bool = False) -> ClassMeans:
    """Those of all processes' users, or of these ``alone``; see :meth:`ClassMeans.of`."""
    parts = [found.means, found.variances, found.counts]
    if not alone:
        parts = [distributed.gathered(part) for part in parts]
    means, variances, counts = (part.cpu().numpy() for part in parts)
    return ClassMeans.of(means, variances, counts, added)
