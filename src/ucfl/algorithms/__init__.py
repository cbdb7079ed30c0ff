"""One file per method; each is a frozen dataclass of hyper-parameters with four pure functions."""

from ucfl.algorithms import lookup
from ucfl.algorithms.adaptive_user_centric import AdaptiveUserCentric
from ucfl.algorithms.algorithm import Algorithm, State
from ucfl.algorithms.apfl import APFL
from ucfl.algorithms.cfl import CFL
from ucfl.algorithms.ditto import Ditto
from ucfl.algorithms.facts import Facts, Findings
from ucfl.algorithms.fedala import FedALA
from ucfl.algorithms.fedamp import FedAMP
from ucfl.algorithms.fedavg import FedAvg
from ucfl.algorithms.fedavg_finetune import FedAvgFinetune
from ucfl.algorithms.fedbabu import FedBABU
from ucfl.algorithms.fedbn import FedBN
from ucfl.algorithms.fedem import FedEM
from ucfl.algorithms.fedfomo import FedFomo
from ucfl.algorithms.fedmoe import FedMoE
from ucfl.algorithms.fedper import FedPer
from ucfl.algorithms.fedprox import FedProx
from ucfl.algorithms.fedrep import FedRep
from ucfl.algorithms.fl_hc import FLHC
from ucfl.algorithms.ifca import IFCA
from ucfl.algorithms.layered_user_centric import LayeredUserCentric
from ucfl.algorithms.lg_fedavg import LGFedAvg
from ucfl.algorithms.local import Local
from ucfl.algorithms.oracle import Oracle
from ucfl.algorithms.per_fedavg import PerFedAvg
from ucfl.algorithms.pfedgraph import PFedGraph
from ucfl.algorithms.pfedme import PFedMe
from ucfl.algorithms.scaffold import Scaffold
from ucfl.algorithms.user_centric import ParallelUserCentric, UserCentric
from ucfl.collaboration import Collaboration, Mixing
from ucfl.federation import Pull
from ucfl.wireless import Traffic

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
        FedRep,
        LGFedAvg,
        FedBN,
        FedBABU,
        APFL,
        FLHC,
        FedAvgFinetune,
        AdaptiveUserCentric,
        LayeredUserCentric,
        PerFedAvg,
        FedAMP,
        IFCA,
        PFedGraph,
        FedALA,
    )
}


def find(given: str | Algorithm | type[Algorithm]) -> Algorithm:
    """An algorithm by its name, by where its class is, as a class or as an object.

    Options follow the name: ``fedprox:mu=0.5``, ``mymodule:MyMethod:strength=2``.
    """
    return lookup.find(given, REGISTRY)


def revived(facts: Facts) -> Algorithm:
    """The algorithm that a stored run says it was trained with."""
    return lookup.revived(facts, REGISTRY)


#: With what a method is written, beside PyTorch.
__all__ = [
    "REGISTRY",
    "Algorithm",
    "Collaboration",
    "Facts",
    "Findings",
    "Mixing",
    "Pull",
    "State",
    "Traffic",
    "find",
    "revived",
]
