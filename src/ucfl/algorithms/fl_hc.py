"""FL+HC: FedAvg for some rounds, one hierarchical clustering of updates, FedAvg inside clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, best_cluster, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Federation
from ucfl.options import Share
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FLHC(Algorithm):
    """After ``after`` rounds, cluster the users' updates by ``linkage`` and cut the tree.

    The cut is at ``threshold`` times its tallest merge (a share, where the publication has an
    absolute distance that depends on model and rate).
    """

    after: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    threshold: Share = 0.8

    name: ClassVar[str] = "fl-hc"
    reference: ClassVar[str] = "Briggs et al., IJCNN 2020"
    cost: ClassVar[str] = "one down per cluster, 1 up"
    tested_model: ClassVar[str] = "aggregated"
    sharded: ClassVar[bool] = False

    def start(self, fed: Federation) -> State:
        """One cluster."""
        labels = torch.zeros(fed.m, dtype=torch.int64, device=fed.device)
        return {"theta": fed.initial(), "labels": labels}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """FedAvg inside each cluster; the clustering happens once."""
        theta, labels = tensor(state, "theta"), tensor(state, "labels")
        local = fed.uplink(fed.train(theta, t), theta)
        if t == self.after + 1:
            here = slice(None) if fed.here is None else fed.here
            updates = (local - theta)[here, : fed.rows.trainable].double().cpu().numpy()
            # Who is late or has diverged has sent no update: a cluster of their own, the first.
            labels = torch.full_like(labels, -1)
            labels[here] = torch.from_numpy(self.clusters(updates)).to(fed.device)
            labels = labels.unique(return_inverse=True)[1]  # from 0
        mixing = Mixing.within(fed.sizes, labels).among(fed.present)
        return {"theta": fed.downlink(mixing, mixing @ local, theta), "labels": labels}

    def cohort(self, fed: Federation, t: int) -> Tensor | None:
        """Everyone in the round that clusters, as published."""
        return None if t == self.after + 1 else fed.cohort(t)

    def clusters(self, updates: NDArray[np.float64]) -> NDArray[np.int64]:
        """The cluster of each update."""
        if len(updates) < 2:
            return np.zeros(len(updates), dtype=np.int64)
        tree = scipy.cluster.hierarchy.linkage(updates, self.linkage)
        height = self.threshold * tree[:, 2].max()
        cut = scipy.cluster.hierarchy.fcluster(tree, height, "distance")
        return cut.astype(np.int64) - 1

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The model of the cluster that fits its training data best."""
        return best_cluster(state, arrivals)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A broadcast per cluster."""
        mixing = Mixing.within(fed.sizes, tensor(state, "labels")).among(fed.present)
        return Traffic(down=mixing.sent, up=1)
