"""IFCA: k models, and every user trains the one that fits its data best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl import distributed
from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Federation, reinitialised
from ucfl.options import Copies
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class IFCA(Algorithm):
    """s_i = argmin_s f_i(θ_s);  θ_s ← Σ_{i: s_i = s} n_i θ_i / Σ_{i: s_i = s} n_i.

    f_i is the loss on the user's training data, θ_i the cluster's model after its local training
    (the publication's model averaging). The ``clusters`` models start from different first weights;
    one that nobody chooses stays as it is.
    """

    clusters: Copies = 4

    name: ClassVar[str] = "ifca"
    reference: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    cost: ClassVar[str] = "k down, 1 up, k evaluations of the training data"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "aggregated"

    def start(self, fed: Federation) -> State:
        """Clusters start apart; nobody has chosen yet."""
        rows = [fed.initial()[0], *(reinitialised(fed, s) for s in range(1, self.clusters))]
        labels = torch.zeros(fed.m, dtype=torch.int64, device=fed.device)
        return {"clusters": torch.stack(rows), "labels": labels}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Choose a cluster, train its model, average inside clusters."""
        clusters = tensor(state, "clusters")
        losses = torch.stack([fed.loss(row.expand(fed.m, -1), "train") for row in clusters])
        chosen = losses.nan_to_num(torch.inf).argmin(0)
        labels = fed.kept(chosen, tensor(state, "labels"))
        local = fed.uplink(fed.train(clusters[labels], t), clusters[labels])
        here = slice(None) if fed.here is None else fed.here
        members = labels[here] == torch.arange(self.clusters, device=fed.device)[:, None]
        sizes = members * fed.sizes[here].double()
        total = distributed.gathered(sizes.T.contiguous()).sum(0)[:, None]
        # All models go to all users, who cannot choose otherwise: k streams, each for everyone.
        mixing = Mixing(sizes / total.clamp(min=1), torch.arange(self.clusters, device=fed.device))
        mixed = torch.where(total > 0, mixing @ local[here], clusters)
        return {"clusters": fed.downlink(mixing, mixed, clusters), "labels": labels}

    def models(self, state: State) -> Tensor:
        """The model of the cluster that each user chose last."""
        return tensor(state, "clusters")[tensor(state, "labels")]

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The model with the lowest loss on its training data."""
        clusters = tensor(state, "clusters")
        return clusters[arrivals.losses(clusters, "train").nan_to_num(torch.inf).argmin(0)]

    def audience(self, state: State) -> None:
        """Everyone receives every model."""

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """All models down, evaluated by all; one up."""
        work = 1 + self.clusters * fed.forward_work("train")
        return Traffic(down=self.clusters, up=1, work=work)
