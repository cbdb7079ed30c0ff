"""What methods share whose users fine-tune a model of all."""

from __future__ import annotations

import dataclasses
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing, MixingByPart
from ucfl.errors import UcflWarning
from ucfl.federation import Federation, LocalTraining
from ucfl.wireless import Traffic

#: Fine-tuning with less than this of the rate leaves the model of all as it is.
LEAST_RATE = 0.01


def warn_of_no_rate(name: str, fed: Federation, t: int) -> None:
    """Tell a person whose schedule is so low in round t that fine-tuning does nothing."""
    if fed.training.schedule(t) < LEAST_RATE:
        warnings.warn(
            f"{name}: the schedule is under {LEAST_RATE:.0%} of the rate in some rounds, whose "
            "fine-tuning changes next to nothing; for a cosine, set schedule=cosine:least=0.1.",
            UcflWarning,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Finetuned(Algorithm):
    """Rounds for one model θ; what a user deploys is θ after some passes over its own data."""

    tested_model: ClassVar[str] = "personalised"
    sharded: ClassVar[bool] = True

    @property
    @abstractmethod
    def passes(self) -> int:
        """Epochs of fine-tuning."""

    @abstractmethod
    def mixing(self, fed: Federation) -> Mixing | MixingByPart:
        """What is averaged."""

    def local(self, fed: Federation, theta: Tensor, t: int) -> Tensor:
        """Local training in round t."""
        return fed.train(theta, t)

    def start(self, fed: Federation) -> State:
        """Nothing to fine-tune yet."""
        return {"theta": fed.initial(), "personal": fed.initial()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train, average, then fine-tune as the next round's local training would begin.

        After the last round of a cosine, that is with the last one's rate.
        """
        before = tensor(state, "theta")
        theta = fed.exchange(self.mixing(fed), self.local(fed, before, t), before)
        warn_of_no_rate(self.name, fed, t + 1)
        personal = fed.train(theta, t + 1, training=self.tuning(fed))
        return {"theta": theta, "personal": fed.kept(personal, tensor(state, "personal"))}

    def tuning(self, fed: Federation) -> LocalTraining:
        """The scenario's training, for its own number of epochs."""
        return dataclasses.replace(fed.training, epochs=self.passes, steps=None)

    def models(self, state: State) -> Tensor:
        """The fine-tuned models."""
        return tensor(state, "personal")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model, to be fine-tuned."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """What is averaged, both ways; the fine-tuning is work too."""
        mixing, tuning = self.mixing(fed), fed.work(fed.examples(self.tuning(fed)))
        return Traffic(down=mixing.sent, up=mixing.uploaded, work=1 + tuning)
