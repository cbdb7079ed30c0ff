"""What is computed: models as rows of Θ, local training, gradients, losses and metrics."""

from ucfl.federation.cohorts import CohortFunction, Cohorts
from ucfl.federation.compression import COMPRESSIONS, Compression, compression
from ucfl.federation.deployment import Architecture, Deployed
from ucfl.federation.federation import Federation
from ucfl.federation.gradients import Gradients
from ucfl.federation.memory import Memory
from ucfl.federation.metrics import Metric
from ucfl.federation.models import (
    MODELS,
    create,
    default_initialisation,
    initialise,
    reinitialised,
)
from ucfl.federation.objective import OBJECTIVES, Objective, objective
from ucfl.federation.optimisers import OPTIMISERS
from ucfl.federation.prototypes import Prototypes
from ucfl.federation.rates import depends_on_rounds, schedule
from ucfl.federation.training import LastBatch, LocalTraining, Pull
from ucfl.federation.wire import Links, Wire

__all__ = [
    "COMPRESSIONS",
    "MODELS",
    "OBJECTIVES",
    "OPTIMISERS",
    "Architecture",
    "CohortFunction",
    "Cohorts",
    "Compression",
    "Deployed",
    "Federation",
    "Gradients",
    "LastBatch",
    "Links",
    "LocalTraining",
    "Memory",
    "Metric",
    "Objective",
    "Prototypes",
    "Pull",
    "Wire",
    "compression",
    "create",
    "default_initialisation",
    "depends_on_rounds",
    "initialise",
    "objective",
    "reinitialised",
    "schedule",
]
