"""Users' class prototypes, as they are sent (sketched, noised) and as the server has them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ucfl import distributed
from ucfl.collaboration import sketch
from ucfl.collaboration.prototypes import ClassMeans, Floats
from ucfl.errors import UcflError
from ucfl.federation import Federation, Prototypes, draws, reinitialised

#: Untrained networks whose features prototypes are made of: θ⁰, and others that everyone draws by
#: the seed. One alone may happen to see little of what sets users apart (docs/algorithms).
NETWORKS = 4


def untrained(fed: Federation, count: int) -> list[Tensor]:
    """Rows of Θ [m, P]: θ⁰, and further first weights for the same model."""
    others = [reinitialised(fed, number).expand(fed.m, -1) for number in range(1, count)]
    return [fed.initial(), *others]


def packed(found: Sequence[Prototypes]) -> dict[str, Tensor]:
    """Prototypes of several networks as named tensors, as they are sent."""
    words = "means", "variances", "counts"
    return {f"{word}/{i}": getattr(each, word) for i, each in enumerate(found) for word in words}


def unpacked(sent: Mapping[str, Tensor]) -> list[Prototypes]:
    """What :func:`packed` made tensors of."""
    count = sum(name.startswith("means/") for name in sent)
    return [
        Prototypes(sent[f"means/{i}"], sent[f"variances/{i}"], sent[f"counts/{i}"])
        for i in range(count)
    ]


def sampled(
    found: Sequence[Prototypes],
    *,
    added: Sequence[float] = (),
    others: Sequence[Prototypes] = (),
) -> ClassMeans:
    """Prototypes of several networks as one: features side by side, each in units of its noise.

    Those of all processes' users, and behind them those of ``others`` (the same networks), who come
    later: all in the same units. ``added`` is the variance of noise on each network's sums
    (:meth:`ClassMeans.of`).
    """

    def rows(name: str, number: int) -> Floats:
        ours = distributed.gathered(getattr(found[number], name)).cpu().numpy()
        theirs = [getattr(each, name).cpu().numpy() for each in others[number : number + 1]]
        return np.concatenate([ours, *theirs])

    means, more = [], 0.0
    counts = rows("counts", 0)
    variances = np.zeros_like(counts)
    for number in range(len(found)):
        own = rows("variances", number)
        scale = float((own * counts).sum() / max(counts.sum(), 1e-300)) or 1.0
        means.append(rows("means", number) / scale**0.5)
        variances = variances + own / scale
        more += added[number] / scale if added else 0.0
    return ClassMeans.of(np.concatenate(means, axis=2), variances, counts, more)


def sketched(found: Prototypes, size: int, seed: int) -> Prototypes:
    """Prototypes whose features are sent in ``size`` numbers (:func:`sketch`)."""
    m, classes, features = found.means.shape
    if size >= features:
        raise UcflError(
            f"a sketch of {size} numbers is no shorter than the {features} features; choose fewer, "
            "or 0 to send them as they are."
        )
    means = sketch(found.means.flatten(0, 1), size, seed).view(m, classes, size)
    return Prototypes(means, found.variances, found.counts)


def feature_length(fed: Federation, row: Tensor) -> float:
    """A length that no user's data decides: the median one of 256 random inputs' features."""
    shape = 256, *fed.users.input_shape
    places = torch.arange(int(np.prod(shape)), device=fed.device)
    inputs = draws.uniform(fed.seed, 0, places, -7).view(shape).to(fed.rows.dtype)
    with torch.no_grad():
        features = fed.model.features(row, inputs)
    return float(features.flatten(0, -2).norm(dim=1).median())


def noised(
    found: Prototypes, fed: Federation, multiplier: float, length: float, number: int = 0
) -> Prototypes:
    """Sums, counts and squares with Gaussian noise of ``multiplier`` times an example's part.

    An example is in one class, with 1 in its count, at most ``length`` in its sum and its square in
    the sum of squares. The draws depend on (seed, user, ``number`` of the network) alone, those of
    counts on (seed, user); on a machine of the user's own also on a number that only it knows,
    since the server has the seed, and could take the noise off again.
    """
    m, classes, features = found.means.shape

    def normal(width: int, key: int) -> Tensor:
        own = [] if fed.server is None else [_secret()]
        each = [np.random.default_rng([*own, fed.seed, int(i), key]) for i in fed.users.ids]
        return torch.from_numpy(np.stack([rng.standard_normal(width) for rng in each])).to(
            found.means
        )

    parts = (
        normal(classes, 0),
        *normal(classes * (features + 1), 1 + number).split([classes * features, classes], dim=1),
    )
    counts = found.counts + multiplier * parts[0]
    sums = found.means * found.counts[..., None]
    sums = sums + multiplier * length * parts[1].view(m, classes, features)
    squares = found.variances * (found.counts - 1).clamp(min=0)
    squares = (
        squares + found.counts * found.means.square().sum(2) + multiplier * length**2 * parts[2]
    )
    # Counts of noise alone tell nothing.
    real = counts > 2 * multiplier
    n = torch.where(real, counts, 0).round()
    means = torch.where(real[..., None], sums / n.clamp(min=1)[..., None], 0)
    own = means.square().sum(2) - features * (multiplier * length / n.clamp(min=1)) ** 2
    variances = (squares - n * own).clamp(min=0) / (n - 1).clamp(min=1)
    variances = torch.where(n > 1, variances, 0)
    return Prototypes(means, variances, n)


@cache
def _secret() -> int:
    """Of this process, so that who is asked again answers the same: means of answers tell more."""
    return secrets.randbits(128)
