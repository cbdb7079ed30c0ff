"""FedBABU: the body is trained and averaged, the head keeps its first weights until fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ucfl.algorithms.algorithm import State
from ucfl.algorithms.finetuned import Finetuned
from ucfl.collaboration import Collaboration, MixedPart, Mixing, MixingByPart
from ucfl.errors import UcflError
from ucfl.federation import Federation
from ucfl.options import Passes


@dataclass(frozen=True)
class FedBABU(Finetuned):
    """φ ← Σ_j (n_j / Σ n) φ_j, where φ_j is user j's body after training on f_j(h⁰, ·).

    The head h⁰ is the first model's in every round, and is not sent. What a user deploys is
    (h⁰, φ) after ``finetune_epochs`` passes of the whole model over its own data; the publication
    has 5.
    """

    finetune_epochs: Passes = 5

    name: ClassVar[str] = "fedbabu"
    reference: ClassVar[str] = "Oh et al., ICLR 2022"
    cost: ClassVar[str] = "1 down, 1 up, less the head; E more epochs of work"

    @property
    def passes(self) -> int:
        """Epochs of fine-tuning."""
        return self.finetune_epochs

    def check(self, fed: Federation) -> None:
        """There is a body to train."""
        if not (fed.rows.trained - fed.part("head")).count:
            raise UcflError(
                "the head is all that the model trains, so FedBABU would train nothing; take a "
                "model of several layers, or run fedavg-finetune."
            )

    def start(self, fed: Federation) -> State:
        """Nothing to fine-tune yet."""
        return {**super().start(fed), "shared": (~fed.part("head")).share}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train the body, average it, fine-tune."""
        return {**state, **super().round(fed, state, t)}

    def local(self, fed: Federation, theta: Tensor, t: int) -> Tensor:
        """The body alone."""
        return fed.train(theta, t, only=~fed.part("head"))

    def collaboration(self, state: State) -> Collaboration:
        """One stream of the body; the head stays."""
        share = float(state["shared"])
        kept = MixedPart("head", 1 - share, streams=0)
        return Collaboration(parts=(MixedPart("all but head", share, streams=1), kept))

    def mixing(self, fed: Federation) -> MixingByPart:
        """FedAvg in the body."""
        body = ~fed.part("head")
        return Mixing.by_part({body: Mixing.average(fed.sizes)}).among(fed.present)
