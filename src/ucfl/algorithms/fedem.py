"""FedEM: every user's data is a mixture of shared components; EM finds both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Federation, reinitialised
from ucfl.federation.evaluation import correct
from ucfl.options import Copies
from ucfl.users import Split
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class FedEM(Algorithm):
    """E: q_ik(x, y) ∝ π_ik exp(−ℓ(θ_k; x, y)); M: π_ik = mean q_ik, θ_k by q-weighted SGD.

    ``components`` models are shared by all; a user predicts with Σ_k π_ik p(y | x; θ_k).
    """

    components: Copies = 3

    name: ClassVar[str] = "fedem"
    reference: ClassVar[str] = "Marfoq et al., NeurIPS 2021"
    cost: ClassVar[str] = "K down, K up, K times the work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"

    def start(self, fed: Federation) -> State:
        """Components start apart: equal ones would stay equal."""
        rows = [fed.initial()[0]]
        rows += [reinitialised(fed, k) for k in range(1, self.components)]
        shares = torch.full((fed.m, self.components), 1 / self.components, device=fed.device)
        return {"components": torch.stack(rows), "shares": shares.double()}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """One EM step: whose is each example, then train every component on its part."""
        components, shares = tensor(state, "components"), tensor(state, "shares")
        data = fed.users.train
        fit = []
        for row in components:
            out = fed.outputs(row.expand(fed.m, -1), "train")
            fit.append(-F.cross_entropy(out.flatten(0, 1), data.labels.flatten(), reduction="none"))
        likelihood = torch.stack(fit, -1).view(*data.labels.shape, -1).double()
        q = torch.softmax(shares.log()[:, None] + likelihood, dim=-1)  # [m, n, components]
        average = Mixing.average(fed.sizes).among(fed.present)
        trained = [
            (
                average
                @ fed.train(row.expand(fed.m, -1), t, example_weights=q[..., k].to(row.dtype))
            )[0]
            for k, row in enumerate(components)
        ]
        found = (q * data.real[..., None]).sum(1) / data.sizes[:, None]
        return {"components": torch.stack(trained), "shares": fed.kept(found, shares)}

    def models(self, state: State) -> Tensor:
        """A user's mixture as one row: all components, then its shares."""
        components, shares = tensor(state, "components"), tensor(state, "shares")
        common = components.reshape(1, -1).expand(len(shares), -1)
        return torch.cat([common, shares.to(common.dtype)], dim=1)

    def accuracy(self, fed: Federation, state: State, split: Split = "test") -> Tensor:
        """Of the mixture of predictions."""
        components, shares = tensor(state, "components"), tensor(state, "shares")
        data = fed.users.split(split)
        mixture = torch.zeros(*data.labels.shape, fed.users.classes, device=fed.device).double()
        for k, row in enumerate(components):
            out = fed.outputs(row.expand(fed.m, -1), split)
            mixture += shares[:, k, None, None] * out.double().softmax(-1)
        right = torch.where(data.real, correct(mixture, data.labels), 0)
        return right.sum(1) / data.sizes

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Every component both ways, trained by all; whose an example is takes a look at it."""
        work = self.components * (1 + fed.forward_work("train"))
        return Traffic(down=self.components, up=self.components, work=work)
