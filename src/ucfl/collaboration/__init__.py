"""Who learns from whom (paper, sec. III-IV): pure array functions."""

from ucfl.collaboration.by_part import MixingByPart
from ucfl.collaboration.diagnosis import Diagnosis, noise_floor, spread
from ucfl.collaboration.found import Collaboration, MixedPart
from ucfl.collaboration.graph import cosines, graph_weights
from ucfl.collaboration.mixing import Mixing
from ucfl.collaboration.sketches import sketch
from ucfl.collaboration.streams import (
    StreamPlan,
    choose_streams,
    fixed_streams,
    stream_choices,
    tradeoff_function,
)
from ucfl.collaboration.weights import (
    collaboration_weights,
    distances_between,
    gradient_distances,
    newcomer_weights,
)

__all__ = [
    "Collaboration",
    "Diagnosis",
    "MixedPart",
    "Mixing",
    "MixingByPart",
    "StreamPlan",
    "choose_streams",
    "collaboration_weights",
    "cosines",
    "distances_between",
    "fixed_streams",
    "gradient_distances",
    "graph_weights",
    "newcomer_weights",
    "noise_floor",
    "sketch",
    "spread",
    "stream_choices",
    "tradeoff_function",
]
