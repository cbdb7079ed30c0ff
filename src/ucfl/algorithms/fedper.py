"""FedPer: a part of the model stays with its user, the rest is averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State
from ucfl.collaboration import Collaboration, MixedPart, Mixing, MixingByPart
from ucfl.errors import UcflError
from ucfl.federation import Federation
from ucfl.options import PartName
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Θ_body ← Σ_j (n_j / Σ n) Θ_body,j; what is ``personal`` never leaves its user.

    ``personal`` names a part of the model (see :meth:`Rows.part`): ``head`` as published, where
    the last layers are personal. Body and personal layers are trained together (:meth:`local`),
    from the scenario's settings.
    """

    personal: PartName = "head"

    name: ClassVar[str] = "fedper"
    reference: ClassVar[str] = "Arivazhagan et al., 2019"
    cost: ClassVar[str] = "1 down, 1 up, less what is personal"
    tested_model: ClassVar[str] = "personalised"
    sharded: ClassVar[bool] = True

    def check(self, fed: Federation) -> None:
        """The model has the part, and something beside it."""
        if not (~fed.part(self.personal)).count:
            raise UcflError(
                f"{self.personal!r} is the whole model, so {type(self).__name__} would average "
                "nothing; name a smaller part, or run local."
            )

    def start(self, fed: Federation) -> State:
        """Everyone starts from the same model."""
        return {"theta": fed.initial(), "shared": (~fed.part(self.personal)).share}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere, average all but the personal part."""
        theta = self.models(state)
        local = self.local(fed, theta, t)
        return {**state, "theta": fed.exchange(self.mixing(fed), local, theta)}

    def local(self, fed: Federation, theta: Tensor, t: int) -> Tensor:
        """Local training in round t."""
        return fed.train(theta, t)

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """What is shared, and the first weights of what is personal: to be trained."""
        personal = fed.part(self.personal).mask.to(fed.device)
        return torch.where(personal, arrivals.initial(), self.models(state)[:1])

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """What is averaged, both ways."""
        mixing = self.mixing(fed)
        return Traffic(down=mixing.sent, up=mixing.uploaded)

    def collaboration(self, state: State) -> Collaboration:
        """One stream of what is shared; the rest stays."""
        share = float(state["shared"])
        kept = MixedPart(self.personal, 1 - share, streams=0)
        return Collaboration(parts=(MixedPart(f"all but {self.personal}", share, streams=1), kept))

    def mixing(self, fed: Federation) -> MixingByPart:
        """FedAvg in the shared part."""
        shared = ~fed.part(self.personal)
        return Mixing.by_part({shared: Mixing.average(fed.sizes)}).among(fed.present)
