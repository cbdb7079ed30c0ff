"""CFL: FedAvg that splits its users in two wherever their updates point apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import scipy
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from ucfl.algorithms.algorithm import Algorithm, State, best_cluster, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Federation
from ucfl.options import NotNegative
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class CFL(Algorithm):
    """A cluster splits when its mean update is small, its largest is not, and its halves differ.

    Small: ‖mean Δ‖ < ``mean_below`` · max_i ‖Δ_i‖. Not small: max_i ‖Δ_i‖ > ``largest_above`` times
    the largest of the first round. (The publication's ε₁ and ε₂ are absolute, and depend on model
    and rate.) The halves are those that minimise the largest cosine similarity across, by
    complete linkage, as published. They differ if their silhouette in cosine distance is at
    least ``separation``: late in training the updates of users that are alike are mostly noise,
    the mean of noise is small, and the published rule alone splits to the last user.

    The users of a round decide; absent ones of a cluster that splits follow the half that their
    last update is nearer to. (The publication lets a client that comes later walk down the tree of
    clusters in the same way.)
    """

    mean_below: NotNegative = 0.45
    largest_above: NotNegative = 0.5
    separation: Annotated[float, Field(ge=-1, le=1)] = 0.15

    name: ClassVar[str] = "cfl"
    reference: ClassVar[str] = "Sattler et al., TNNLS 2020"
    cost: ClassVar[str] = "one down per cluster, 1 up"
    tested_model: ClassVar[str] = "aggregated"
    sharded: ClassVar[bool] = False

    def start(self, fed: Federation) -> State:
        """One cluster."""
        labels = torch.zeros(fed.m, dtype=torch.int64, device=fed.device)
        return {"theta": fed.initial(), "labels": labels, "scale": 0.0, "streams": 1}

    def _known(self, fed: Federation, state: State, update: Tensor) -> dict[str, Tensor]:
        """Everyone's last update, where not everyone is there in every round."""
        if fed.present is None and "updates" not in state:
            return {}
        before = tensor(state, "updates") if "updates" in state else torch.zeros_like(update)
        return {"updates": fed.kept(update, before)}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """FedAvg inside each cluster; then split the clusters that ask for it."""
        theta, labels = tensor(state, "theta"), tensor(state, "labels")
        local = fed.uplink(fed.train(theta, t), theta)
        update = (local - theta)[:, : fed.rows.trainable].double()
        scale = float(state["scale"]) or float(update.norm(dim=1).max())
        mixing = Mixing.within(fed.sizes, labels).among(fed.present)
        fresh, known = labels.clone(), self._known(fed, state, update)
        for cluster in labels.unique().tolist():
            here = fed.kept(labels, torch.full_like(labels, -1)) == cluster
            members = torch.nonzero(here)[:, 0]  # users, not positions
            if len(members) > 2 and self._asks_to_split(fed, update[members], members, scale):
                half = bipartition(update[members])
                if separation(update[members], half) >= self.separation:
                    split = int(fresh.max()) + 1
                    fresh[members[half]] = split
                    absent = torch.nonzero((labels == cluster) & ~here)[:, 0]
                    if len(absent):
                        follow = nearer(known["updates"][absent], update[members], half)
                        fresh[absent[follow]] = split
        mixed = fed.downlink(mixing, mixing @ local, theta)
        state = {"theta": mixed, "labels": fresh, "scale": scale, "streams": mixing.sent}
        return {**state, **known}

    def _asks_to_split(
        self, fed: Federation, updates: Tensor, members: Tensor, scale: float
    ) -> bool:
        share = fed.sizes[members].double() / fed.sizes[members].sum()
        together, largest = (share @ updates).norm(), updates.norm(dim=1).max()
        small = bool(together < self.mean_below * largest)
        return small and bool(largest > self.largest_above * scale)

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The model of the cluster that fits its training data best."""
        return best_cluster(state, arrivals)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A broadcast per cluster that was there before the round's splits."""
        return Traffic(down=int(state["streams"]), up=1)


def bipartition(updates: Tensor) -> Tensor:
    """Mask of the half that does not hold the first user."""
    apart = scipy.spatial.distance.pdist(updates.cpu().numpy(), "cosine")
    tree = scipy.cluster.hierarchy.linkage(apart, "complete")
    half = scipy.cluster.hierarchy.fcluster(tree, 2, "maxclust")
    return torch.from_numpy(half != half[0]).to(updates.device)


def nearer(others: Tensor, updates: Tensor, half: Tensor) -> Tensor:
    """Mask of the others whose mean cosine similarity with the half is the larger one."""
    alike = functional.normalize(others, dim=1) @ functional.normalize(updates, dim=1).T
    return alike[:, half].mean(1) > alike[:, ~half].mean(1)


def separation(updates: Tensor, half: Tensor) -> float:
    """The silhouette of the two halves in cosine distance."""
    if bool(half.all()) or not bool(half.any()):
        return 0.0
    from sklearn.metrics import silhouette_score  # takes seconds to import

    return float(silhouette_score(updates.cpu().numpy(), half.cpu().numpy(), metric="cosine"))
