"""All users at once: models as rows of Θ, the training engine, losses and accuracy."""

from ucfl.federation.engine import Federation
from ucfl.federation.gradients import Gradients
from ucfl.federation.models import MODELS, create, initialise, reinitialised
from ucfl.federation.training import LocalTraining, Pull

__all__ = [
    "MODELS",
    "Federation",
    "Gradients",
    "LocalTraining",
    "Pull",
    "create",
    "initialise",
    "reinitialised",
]
