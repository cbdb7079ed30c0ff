"""Ways to mix that one collaboration round offers, and which of them users are better off with."""

from __future__ import annotations

import torch
from torch import Tensor

from ucfl.collaboration.mixing import Mixing
from ucfl.collaboration.weights import kernel_weights

#: Kernel widths, in units of the gradients' noise floor.
WIDTHS = (1, 2, 4, 8, 16, 32)
#: All candidates by name, sharpest first; ``hard`` is FedAvg inside each stream of the plan.
NAMES = ("local", *(f"h={width}" for width in WIDTHS), "hard", "fedavg")


def kernel(distances: Tensor, floor: Tensor, sizes: Tensor, width: float) -> Tensor:
    """w_ij ∝ n_j exp(−Δ_ij / (h (s_i + s_j))): eq. 7 with its bandwidth in units of noise.

    Eq. 7 with K batches of n_k = N/K examples has σ²_i = (K − 1) s_i, where s_i is the variance of
    user i's full gradient: h = K − 1, and n_k need not be chosen.
    """
    return kernel_weights(distances, width * (floor[:, None] + floor[None, :]), sizes)


def candidate(
    name: str,
    distances: Tensor,
    floor: Tensor,
    sizes: Tensor,
    labels: Tensor,
    *,
    together: bool = False,
) -> Tensor:
    """[m, m] weights of one of :data:`NAMES`; ``labels`` is the plan of streams.

    ``together``: a kernel has one row for each stream, the mean of its users' rows.
    """
    if name == "local":
        return torch.eye(len(sizes), dtype=torch.float64, device=sizes.device)
    if name.startswith("h="):
        rows = kernel(distances, floor, sizes, float(name[2:]))
        if not together:
            return rows
        alike = Mixing.within(torch.ones_like(sizes), labels)
        return (alike.streams @ rows)[alike.labels]
    mixing = Mixing.within(sizes, labels) if name == "hard" else Mixing.average(sizes)
    return mixing.weights


def common_choice(losses: Tensor, current: int, doubt: float = 1.0) -> int:
    """The candidate with the lowest mean loss, if it beats the current one beyond doubt.

    ``losses`` [candidates, users] are means over each user's validation data, NaN without any.
    Users are paired with themselves: the gain's standard error is that of the mean over users of
    (loss with the current candidate − loss with the other). A gain within ``doubt`` of them changes
    nothing. Candidates with which more users than necessary have an infinite loss are out.
    """
    losses = losses[:, ~losses.isnan().all(0)]
    broken = (~losses.isfinite()).sum(1)
    allowed = broken == broken.min()
    losses = losses[:, losses[allowed].isfinite().all(0)]
    means = torch.where(allowed, losses.mean(1), torch.inf)
    if losses.shape[1] == 0 or (losses.shape[1] < 2 and allowed[current]):
        return current if allowed[current] else int(allowed.int().argmax())
    best = int(means.argmin())
    if not allowed[current]:
        return best
    gain = losses[current] - losses[best]
    error = gain.std() / len(gain) ** 0.5
    return best if gain.mean() > doubt * error else current


def own_choices(
    losses: Tensor,
    current: Tensor,
    labels: Tensor,
    doubt: float = 1.0,
    asked: Tensor | None = None,
) -> Tensor:
    """[m]: the same for every user on its own.

    ``losses`` [candidates, users, examples] are those of single examples, NaN for padding. A user
    without two validation examples follows the most frequent choice of its stream; one that was
    not ``asked`` [m] keeps its own (None: everyone was).
    """
    before = current
    broken = losses.isinf().sum(2)  # [candidates, users]
    allowed = broken == broken.min(0).values
    # Compared on the examples that are finite with everything allowed.
    real = (losses.isfinite() | ~allowed[:, :, None]).all(0) & ~losses.isnan().all(0)
    count = real.sum(1)
    means = torch.where(real, losses, 0.0).sum(2) / count.clamp(min=1)
    best = torch.where(allowed, means, torch.inf).argmin(0)
    user = torch.arange(len(current), device=current.device)
    current = torch.where(allowed[current, user], current, best)
    gain = torch.where(real, losses[current, user] - losses[best, user], 0.0)
    mean = gain.sum(1) / count.clamp(min=1)
    scatter = torch.where(real, (gain - mean[:, None]).square(), 0.0).sum(1)
    error = (scatter / (count - 1).clamp(min=1) / count.clamp(min=1)).sqrt()
    chosen = torch.where((mean > doubt * error) & (count > 1), best, current)
    for stream in labels.unique():
        inside = labels == stream
        voters = inside & (count > 1)
        if voters.any():
            chosen[inside & ~voters] = chosen[voters].mode().values
    return chosen if asked is None else torch.where(asked, chosen, before)
