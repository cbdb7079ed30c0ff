"""Oracle: FedAvg inside each true group, an upper bound that needs to know the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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

    def mixing(self, fed: Federation) -> Mixing:
        """Average inside each group."""
        self.check(fed)
        assert fed.groups is not None
        return Mixing.within(fed.sizes, fed.groups).among(fed.present)
