"""FedProx: FedAvg with local models held near the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ucfl.algorithms.algorithm import State, tensor
from ucfl.algorithms.fedavg import FedAvg
from ucfl.federation import Federation, Pull
from ucfl.options import NotNegative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Users minimise f_i(θ) + μ/2 ‖θ − θ_global‖², whose gradient has the pull μ(θ − θ_global).

    ``tested``: the aggregated model, as published, or the locally trained one, as in the code
    behind the paper's Table I.
    """

    mu: NotNegative = 0.1
    tested: Literal["aggregated", "local"] = "aggregated"

    name: ClassVar[str] = "fedprox"
    reference: ClassVar[str] = "Li et al., MLSys 2020"
    cost: ClassVar[str] = "1 down, 1 up"
    deployable: ClassVar[bool] = True
    of_users: ClassVar[frozenset[str]] = frozenset({"theta", "local"})

    @property
    def tested_model(self) -> str:  # type: ignore[override]
        """As the hyper-parameter says."""
        return self.tested

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model."""
        return {"theta": fed.initial(), "local": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train with the pull, average."""
        theta = tensor(state, "theta")
        local = fed.train(theta, t, Pull(self.mu, towards=theta))
        own = fed.kept(local, tensor(state, "local"))
        return {"theta": self.mixed(fed, state, local, theta), "local": own}

    def models(self, state: State) -> Tensor:
        """The global model, or the ones it was averaged from."""
        return tensor(state, "local" if self.tested == "local" else "theta")
