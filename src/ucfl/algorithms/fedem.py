"""FedEM: every user's data is a mixture of shared components; EM finds both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ucfl.algorithms.algorithm import Algorithm, State, mixture_of, tensor
from ucfl.collaboration import Mixing
from ucfl.federation import Architecture, Federation, reinitialised
from ucfl.federation.evaluation import measured_outputs
from ucfl.federation.objective import Mixture
from ucfl.options import Copies
from ucfl.users import Split
from ucfl.wireless import Traffic


class WeightedMixture(nn.Module):
    """Σ_k π_k p(y | x; θ_k), in its logarithm: what a user predicts with.

    ``mixture`` is the objective's: Σ_k π_k ŷ(x; θ_k) where predictions are numbers. In float64, as
    the run evaluates it.
    """

    shares: Tensor

    def __init__(self, components: list[nn.Module], shares: Tensor, mixture: Mixture) -> None:
        super().__init__()
        self.mixture = mixture
        self.components = nn.ModuleList(components)
        self.register_buffer("shares", shares.clone())

    def forward(self, x: Tensor) -> Tensor:
        """What the components predict together."""
        outputs = torch.stack([component(x) for component in self.components]).double()
        weights = self.shares.double().log()[:, None].expand(*outputs.shape[:2])
        return self.mixture(outputs, weights)


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

    def check(self, fed: Federation) -> None:
        """The objective must say what several models predict together."""
        mixture_of(fed, self.name)

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
            fit.append(-fed.objective.loss(out.flatten(0, 1), data.targets.flatten(0, 1)))
        likelihood = torch.stack(fit, -1).view(*data.real.shape, -1).double()
        q = torch.softmax(shares.log()[:, None] + likelihood, dim=-1)  # [m, n, components]
        average = Mixing.average(fed.sizes).among(fed.present)
        trained = []
        for k, row in enumerate(components):
            each = row.expand(fed.m, -1)
            local = fed.train(each, t, example_weights=q[..., k].to(row.dtype))
            trained.append(fed.exchange(average, local, each)[0])
        # Not a product with zero: what a model makes of padding may be no number.
        found = torch.where(data.real[..., None], q, 0.0).sum(1) / data.sizes[:, None]
        return {"components": torch.stack(trained), "shares": fed.kept(found, shares)}

    def models(self, state: State) -> Tensor:
        """A user's mixture as one row: all components, then its shares."""
        components, shares = tensor(state, "components"), tensor(state, "shares")
        common = components.reshape(1, -1).expand(len(shares), -1)
        return torch.cat([common, shares.to(common.dtype)], dim=1)

    def model(self, architecture: Architecture, state: State, user: int) -> nn.Module:
        """The mixture of predictions."""
        components = [architecture.module(row) for row in tensor(state, "components")]
        shares = tensor(state, "shares")[user]
        return WeightedMixture(components, shares, mixture_of(architecture, self.name))

    def metrics(self, fed: Federation, state: State, split: Split = "test") -> Mapping[str, Tensor]:
        """Of the mixture of predictions."""
        shares = tensor(state, "shares")
        each = [fed.outputs(row.expand(fed.m, -1), split) for row in tensor(state, "components")]
        out = torch.stack(each).flatten(1, 2).double()  # [K, m n, ...]
        n = out.shape[1] // fed.m
        weights = shares.log().T.repeat_interleave(n, dim=1)
        mixed = mixture_of(fed, self.name)(out, weights).unflatten(0, (fed.m, n))
        return measured_outputs(fed, mixed, fed.users.split(split))

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Every component both ways, trained by all; whose an example is takes a look at it."""
        work = self.components * (1 + fed.forward_work("train"))
        return Traffic(down=self.components, up=self.components, work=work)
