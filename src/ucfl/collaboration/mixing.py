"""Aggregation is one product: Θ ← WΘ, with W given by k distinct rows and who gets which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ucfl import distributed
from ucfl.collaboration.by_part import MixingByPart
from ucfl.parts import Part


@dataclass(frozen=True)
class Mixing:
    """A mixing matrix W ∈ R^{m×m} with k distinct rows: W = streams[labels].

    ``streams`` [k, m] are the aggregation rules, one broadcast each; ``labels`` [m] says which
    stream a user listens to. ``mixing @ theta`` is WΘ (paper, eq. 8), at the cost of k rows. A
    weight of 0 means that a row is not looked at, whatever it holds. ``present`` [m] marks whose
    rows are looked at, and who receives; who listens to one of the streams marked in ``silent``
    [k] keeps its row. ``left`` [k, 1] is what the present users' weights were of each stream.

    Rows that are means sum to 1. Others are taken as they are (a cluster of nobody has zeros, a
    process its own columns), but where users are absent, :meth:`among` makes them sum to 1.

    Where processes share the users, each has its own users' columns, labels and rows of Θ, and
    the product exchanges the k streams' partial sums, not m models.

    Examples:
        >>> import torch
        >>> theta = torch.tensor([[0.0], [4.0], [10.0]])  # three users' models of one parameter
        >>> mixing = Mixing.average(torch.tensor([1, 1, 2]))  # by the size of their data
        >>> (mixing @ theta).flatten().tolist()
        [6.0, 6.0, 6.0]
        >>> groups = Mixing.within(torch.tensor([1, 1, 2]), torch.tensor([0, 0, 1]))
        >>> (groups @ theta).flatten().tolist()
        [2.0, 2.0, 10.0]
    """

    streams: Tensor
    labels: Tensor
    silent: Tensor | None = None
    present: Tensor | None = None
    left: Tensor | None = None

    @classmethod
    def average(cls, sizes: Tensor) -> Mixing:
        """FedAvg: one stream, w_j = n_j / Σ n.

        Nothing here waits for a GPU, unlike the search for groups: FedAvg asks every round.
        """
        everyone = distributed.gathered(sizes).double()
        here = distributed.mine(len(sizes), sizes.device)
        return cls((everyone / everyone.sum())[None, here], torch.zeros_like(sizes))

    @classmethod
    def within(cls, sizes: Tensor, groups: Tensor) -> Mixing:
        """FedAvg inside each group: one stream per group."""
        here = distributed.mine(len(sizes), sizes.device)
        sizes, groups = distributed.gathered(sizes), distributed.gathered(groups)
        _, labels = groups.unique(return_inverse=True)
        streams = sizes.new_zeros(int(labels.max()) + 1, len(sizes), dtype=torch.float64)
        streams[labels, torch.arange(len(sizes), device=sizes.device)] = sizes.double()
        return cls(streams / streams.sum(1, keepdim=True), labels).part(here)

    @classmethod
    def of_one(cls, chosen: Tensor, sizes: Tensor) -> Mixing:
        """Rows of single users: ``chosen`` [q] are their places among all; ``sizes`` [m] are ours.

        For who comes later and takes over what somebody has: the product has q rows.
        """
        here = distributed.mine(len(sizes), sizes.device)
        everyone = torch.arange(len(distributed.gathered(sizes)), device=sizes.device)
        streams = (chosen[:, None] == everyone).double()
        return cls(streams[:, here], torch.arange(len(chosen), device=sizes.device))

    @staticmethod
    def by_part(parts: Mapping[Part, Mixing]) -> MixingByPart:
        """A mixing matrix for each part of the model; columns of no part stay with their user.

        Parts are those of :meth:`Federation.part`: ``Mixing.by_part({fed.part("body"): average})``.
        """
        return MixingByPart(parts)

    @property
    def weights(self) -> Tensor:
        """W itself, a row per user."""
        return self.streams[self.labels]

    @property
    def count(self) -> int:
        """k, the number of streams."""
        return len(self.streams)

    @property
    def share(self) -> Tensor:
        """[k, 1]: the part of each stream's weight that the present users have: 1 for everyone."""
        return self.streams.new_ones(self.count, 1) if self.left is None else self.left

    @property
    def sent(self) -> int:
        """How many streams are broadcast: those that anybody who is present listens to."""
        if self.present is None:
            return self.count
        heard = torch.zeros(self.count, dtype=torch.int64, device=self.labels.device)
        heard = heard.index_add(0, self.labels, self.present.long())
        return int((distributed.summed(heard) > 0).sum())

    @property
    def uploaded(self) -> float:
        """What part of a model each user sends: all of it."""
        return 1.0

    def products(self, size: int) -> list[tuple[Mixing, Part]]:
        """The one product, of all ``size`` columns: as :meth:`MixingByPart.products`."""
        return [(self, Part.joined("all", [(0, size)], size))]

    def part(self, users: slice) -> Mixing:
        """What concerns some of the users: their columns, their choices."""
        return Mixing(self.streams[:, users], self.labels[users])

    def among(self, present: Tensor | None) -> Mixing:
        """The same without absent users: their columns left out, rows renormalised.

        ``present`` [m] marks who is there (None: everyone). A stream of absent users alone is
        silent.
        """
        if present is None:
            return self
        streams = torch.where(present, self.streams, 0)
        total = distributed.summed(streams.sum(1, keepdim=True))
        silent = total[:, 0] == 0
        rules = streams / torch.where(total == 0, 1, total)
        return Mixing(rules, self.labels, silent, present, total)

    def broadcasts(self, theta: Tensor) -> Tensor:
        """[k, P]: what each stream sends."""
        rules, rows = self.streams.to(theta.dtype), theta
        if self.present is not None:  # a round costs what those cost who are there
            here = torch.nonzero(self.present)[:, 0]
            rules, rows = rules[:, here], theta[here]
        streams = distributed.summed(rules @ rows)
        if not bool(streams.sum().isfinite()):  # 0 · ∞, perhaps: only what has a weight counts
            own = [rule[rule != 0] @ rows[rule != 0] for rule in rules]
            streams = distributed.summed(torch.stack(own))
        return streams

    def __matmul__(self, theta: Tensor) -> Tensor:
        streams = self.broadcasts(theta)
        mixed = streams.expand(len(self.labels), -1) if self.count == 1 else streams[self.labels]
        if self.silent is not None and bool(self.silent.any()):
            return torch.where(self.silent[self.labels][:, None], theta, mixed)
        return mixed
