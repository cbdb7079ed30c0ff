"""What is computed: models as rows of Θ, local training, gradients, losses and accuracy."""

from ucfl.federation.federation import Federation
from ucfl.federation.gradients import Gradients
from ucfl.federation.models import (
    MODELS,
    create,
    default_initialisation,
    initialise,
    reinitialised,
)
from ucfl.federation.training import LastBatch, LocalTraining, Pull

__all__ = [
    "MODELS",
    "Federation",
    "Gradients",
    "LastBatch",
    "LocalTraining",
    "Pull",
    "create",
    "default_initialisation",
    "initialise",
    "reinitialised",
]
