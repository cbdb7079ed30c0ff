"""How things are computed: executors for pure functions of one user, whatever they compute."""

from ucfl.execution.choice import Options, choose, for_mixture
from ucfl.execution.cuda import Recorded
from ucfl.execution.differentiation import gradient
from ucfl.execution.executor import Batches, Cut, Executor, Function, Step, Tensors
from ucfl.execution.generators import drawn_from
from ucfl.execution.memory import saved_bytes
from ucfl.execution.normalisation import normalise
from ucfl.execution.plain import Plain
from ucfl.execution.precision import Precision, computing
from ucfl.execution.private import version
from ucfl.execution.stacked import Stacked

__all__ = [
    "Batches",
    "Cut",
    "Executor",
    "Function",
    "Options",
    "Plain",
    "Precision",
    "Recorded",
    "Stacked",
    "Step",
    "Tensors",
    "choose",
    "computing",
    "drawn_from",
    "for_mixture",
    "gradient",
    "normalise",
    "saved_bytes",
    "version",
]
