"""SCAFFOLD: control variates against the drift of local models."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining, Pull
from ucfl.options import Passes, Positive
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Local steps along g − c_i + c; then c_i ← c_i − c + (θ − θ_i) / (K_i η)  (option II).

    Users send what their variates change by, and c ← c + Σ p_i Δc_i over those who took part, with
    FedAvg's shares p_i = n_i / Σ n of everyone; absent users' variates stay, and stay in c, as
    published. All start at zero. K_i is the user's own number of steps. With momentum β, the
    displacement θ − θ_i sums each gradient more than once: K_i is then the sum of those weights,
    Σ_s (1 − β^s)/(1 − β), so that c_i stays an average of gradients (K_i itself for β = 0, as
    published). The paper sets η = 0.01, E = 5.
    """

    lr: Positive = 0.01
    epochs: Passes = 5

    name: ClassVar[str] = "scaffold"
    reference: ClassVar[str] = "Karimireddy et al., ICML 2020"
    cost: ClassVar[str] = "2 down, 2 up, E times the work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "aggregated"
    unused: ClassVar[frozenset[str]] = frozenset({"lr", "epochs", "variance_batch"})

    def check(self, fed: Federation) -> None:
        """Variates are averages of gradients, which SGD's steps add up to, and others do not."""
        if fed.training.optimiser != "sgd" or fed.training.optimiser_state != "reset":
            raise UcflError(
                "SCAFFOLD takes its variates from SGD's steps; train with optimiser = sgd and "
                "optimiser_state = reset."
            )

    def training(self, fed: Federation) -> LocalTraining:
        """The scenario's, with its own rate and epochs."""
        return dataclasses.replace(fed.training, lr=self.lr, epochs=self.epochs, steps=None)

    def start(self, fed: Federation) -> State:
        """All variates are zero."""
        zeros = torch.zeros_like(fed.initial())
        return {"theta": fed.initial(), "variates": zeros, "common": zeros[:1]}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train along corrected gradients, average, renew the variates."""
        training, average = self.training(fed), Mixing.average(fed.sizes)
        theta, own, common = (tensor(state, part) for part in ("theta", "variates", "common"))
        local = fed.train(theta, t, Pull(direction=common - own), training)
        weight = effective_steps(fed.steps_of(training), training.momentum).to(theta.dtype)
        renewed = own - common + (theta - local) / (weight[:, None] * training.rate(t))
        renewed[:, fed.rows.trainable :] = 0  # buffers have no gradient to control
        there = average.among(fed.present)
        change = fed.exchange(there, renewed - own, torch.zeros_like(own))
        moved = there.share.to(theta.dtype) * change[:1]
        return {
            "theta": fed.exchange(there, local, theta),
            "variates": fed.kept(renewed, own),
            "common": common + moved,
        }

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Model and variate both ways."""
        return Traffic(down=2, up=2, work=fed.work(fed.examples(self.training(fed))))


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """Σ_{s=1}^{K} (1 − β^s)/(1 − β): how often K momentum steps count a constant gradient."""
    k = steps.double()
    if momentum == 0:
        return k
    return (k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)
