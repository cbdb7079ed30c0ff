"""FedAvg with local fine-tuning: the simplest personalisation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl.algorithms.algorithm import State, tensor
from ucfl.algorithms.fedavg import FedAvg
from ucfl.federation import Federation, LocalTraining
from ucfl.options import Passes
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FedAvgFinetune(FedAvg):
    """FedAvg; what a user deploys is the global model after ``epochs`` passes over its own data."""

    epochs: Passes = 1

    name: ClassVar[str] = "fedavg-finetune"
    reference: ClassVar[str] = "Wang et al., arXiv 1910.10252, 2019"
    cost: ClassVar[str] = "1 down, 1 up, E more epochs of work"
    tested_model: ClassVar[str] = "personalised"

    def start(self, fed: Federation) -> State:
        """Nothing to fine-tune yet."""
        return {"theta": fed.initial(), "personal": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """FedAvg's round, then fine-tuning as the next round's local training would begin."""
        theta = self.mixing(fed) @ fed.train(tensor(state, "theta"), t)
        personal = fed.train(theta, t + 1, training=self.tuning(fed))
        return {"theta": theta, "personal": fed.kept(personal, tensor(state, "personal"))}

    def tuning(self, fed: Federation) -> LocalTraining:
        """The scenario's training, for its own number of epochs."""
        return dataclasses.replace(fed.training, epochs=self.epochs)

    def models(self, state: State) -> Tensor:
        """The fine-tuned models."""
        return tensor(state, "personal")

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; the fine-tuning is work too."""
        return Traffic(down=1, up=1, work=1 + fed.work(fed.examples(self.tuning(fed))))
