"""One file per method; each is a frozen dataclass of hyper-parameters with four pure functions."""

from ucfl.algorithms.adaptive_user_centric import AdaptiveUserCentric
from ucfl.algorithms.algorithm import Algorithm, State
from ucfl.algorithms.cfl import CFL
from ucfl.algorithms.ditto import Ditto
from ucfl.algorithms.fedavg import FedAvg
from ucfl.algorithms.fedavg_finetune import FedAvgFinetune
from ucfl.algorithms.fedem import FedEM
from ucfl.algorithms.fedfomo import FedFomo
from ucfl.algorithms.fedmoe import FedMoE
from ucfl.algorithms.fedper import FedPer
from ucfl.algorithms.fedprox import FedProx
from ucfl.algorithms.fl_hc import FLHC
from ucfl.algorithms.local import Local
from ucfl.algorithms.oracle import Oracle
from ucfl.algorithms.pfedme import PFedMe
from ucfl.algorithms.scaffold import Scaffold
from ucfl.algorithms.user_centric import ParallelUserCentric, UserCentric
from ucfl.options import split, typed

#: Every algorithm by its name.
REGISTRY: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        FedAvg,
        Local,
        Oracle,
        UserCentric,
        ParallelUserCentric,
        FedProx,
        Scaffold,
        Ditto,
        PFedMe,
        CFL,
        FedFomo,
        FedEM,
        FedMoE,
        FedPer,
        FLHC,
        FedAvgFinetune,
        AdaptiveUserCentric,
    )
}


def find(text: str) -> Algorithm:
    """An algorithm from ``name`` or ``name:option=value:option=value``."""
    name, options = split(text, "algorithm", REGISTRY)
    return REGISTRY[name](**typed(REGISTRY[name], name, options))


__all__ = ["REGISTRY", "Algorithm", "State", "find"]
