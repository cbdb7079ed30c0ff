"""Oracle: FedAvg inside each true group, an upper bound that needs to know the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl import distributed
from ucfl.algorithms.algorithm import State
from ucfl.algorithms.fedavg import FedAvg
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.federation import Federation


@dataclass(frozen=True)
class Oracle(FedAvg):
    """As many FedAvg instances as there are groups of users (paper, sec. V-B)."""

    name: ClassVar[str] = "oracle"
    reference: ClassVar[str] = "paper, sec. V-B"
    cost: ClassVar[str] = "one down per group, 1 up"

    def check(self, fed: Federation) -> None:
        """The true groups must be known."""
        if fed.groups is None:
            raise UcflError("the oracle needs the users' true groups, and these users have none.")

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model, and listens to its own group."""
        return {**super().start(fed), "labels": self.mixing(fed).labels}

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor | None:
        """The model of its own group; None where one of them is of a group that nobody trained."""
        self.check(arrivals)
        assert fed.groups is not None
        assert arrivals.groups is not None
        member = arrivals.groups[:, None] == distributed.gathered(fed.groups)
        if not bool(member.any(1).all()):
            return None
        return Mixing.of_one(member.long().argmax(1), fed.sizes) @ self.models(state)

    def mixing(self, fed: Federation) -> Mixing:
        """Average inside each group."""
        self.check(fed)
        assert fed.groups is not None
        return Mixing.within(fed.sizes, fed.groups).among(fed.present)
