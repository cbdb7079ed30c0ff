"""Learning-rate schedules over rounds: what a round's rate is, as a factor of the scenario's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ucfl import options
from ucfl.errors import UcflError
from ucfl.options import Share

#: The factor of round t, which counts from 1.
Rate = Callable[[int], float]


def _numbers(text: Any) -> Any:
    return text.split("+") if isinstance(text, str) else text


Rounds = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Constant:
    """The same rate in every round. With ``warmup``, all schedules rise to it over so many."""

    warmup: Annotated[int, Field(ge=0)] = 0

    def after(self, done: int, rounds: int) -> float:
        """The factor once ``done`` rounds since the warm-up are over, of ``rounds`` in all."""
        return 1.0

    def __call__(self, t: int, rounds: int) -> float:
        """The factor of round t of ``rounds``."""
        if t <= self.warmup:
            return t / (self.warmup + 1)
        return self.after(t - 1 - self.warmup, max(1, rounds - self.warmup))


@dataclass(frozen=True)
class Steps(Constant):
    """Times ``factor`` after each of the rounds ``at`` (``steps:at=100+150``)."""

    at: Annotated[tuple[Rounds, ...], BeforeValidator(_numbers)] = ()
    factor: Share = 0.1

    def after(self, done: int, rounds: int) -> float:
        """As ``torch.optim.lr_scheduler.MultiStepLR``; ``at`` counts the warm-up, too."""
        return self.factor ** sum(done + self.warmup >= at for at in self.at)


@dataclass(frozen=True)
class Cosine(Constant):
    """Half a cosine, from 1 towards ``least`` after the last round (Loshchilov and Hutter)."""

    least: Share = 0.0

    def after(self, done: int, rounds: int) -> float:
        """As ``torch.optim.lr_scheduler.CosineAnnealingLR``; past the last round, its rate."""
        done = min(done, rounds - 1)
        return self.least + (1 - self.least) * (1 + math.cos(math.pi * done / rounds)) / 2


SCHEDULES: dict[str, type[Constant]] = {"constant": Constant, "steps": Steps, "cosine": Cosine}


def schedule(text: str, rounds: int) -> Rate:
    """A schedule by its name and options, such as ``cosine:warmup=5``, for so many rounds."""
    name, given = options.split(text, "schedule", SCHEDULES)
    made = SCHEDULES[name](**options.typed(SCHEDULES[name], name, given))
    if isinstance(made, Steps) and not made.at:
        raise UcflError("the schedule 'steps' needs rounds, such as steps:at=100+150.")
    return partial(made, rounds=rounds)


def depends_on_rounds(text: str) -> bool:
    """Whether a schedule's rates change with the number of rounds."""
    return text.partition(":")[0] == "cosine"
