"""pFedMe: personal models as proximal points of a global one (Moreau envelopes)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.execution import Tensors
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.local import Gradient
from ucfl.options import BatchSize, Momentum, NotNegative, Passes, Positive
from ucfl.wireless import Traffic


@dataclass(frozen=True)
class Form:
    """What two readings of the method differ in.

    ``outer_steps`` R a round (None: one for each batch of a pass), each after ``inner_steps`` K.
    ``continued``: θ̃ starts from w once a round, and every inner step has a batch of its own; else
    it starts from w for every batch, and all K steps are on that one.
    """

    inner_steps: int
    outer_steps: int | None
    momentum: float
    outer_momentum: float
    continued: bool


#: ``authors``: the code of the user-centric paper's authors (before July 2023), whose pFedMe is in
#: its tables. ``publication``: Dinh et al., Algorithm 1, with the S = 15 that the paper prints read
#: as inner steps.
FORMS = {
    "authors": Form(3, 20, 0.9, 0.9, continued=True),
    "publication": Form(15, None, 0.0, 0.0, continued=False),
}


@dataclass(frozen=True)
class Proximal:
    """One inner step; behind every ``times``-th, the outer one.

    The state is w, θ̃, the buffers of either, and the velocities of either. Unless ``continued``, a
    batch's first inner step starts from w.
    """

    times: int
    continued: bool

    def __call__(
        self,
        gradient: Gradient,
        number: Tensor,
        state: tuple[Tensor, ...],
        constants: Tensors,
        hyper: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """v ← μ v + ∇ℓ(θ̃) + λ (θ̃ − w), θ̃ ← θ̃ − rate · v; then u ← ν u + λ (w − θ̃), w ← w − η u."""
        w, near, rest, near_rest, velocity, outer = state
        lr, strength, outer_lr, momentum, outer_momentum = hyper
        ends = number % self.times == self.times - 1
        if not self.continued:
            starts = number % self.times == 0
            near, near_rest = torch.where(starts, w, near), torch.where(starts, rest, near_rest)
        found, near_rest = gradient(near, near_rest)
        velocity = momentum * velocity + (found + strength * (near - w))
        near = near - lr * velocity
        outer = torch.where(ends, outer_momentum * outer + strength * (w - near), outer)
        w = torch.where(ends, w - outer_lr * outer, w)
        # Buffers that training leaves alone stay as they are, also where they are infinite.
        trained = ends & (rest != near_rest)
        rest = torch.where(trained, rest - outer_lr * strength * (rest - near_rest), rest)
        return w, near, rest, near_rest, velocity, outer


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """R times: θ̃ ≈ argmin f_i(θ) + λ/2 ‖θ − w‖² by K steps, then w ← w − ηλ(w − θ̃).

    λ is ``strength``, K ``inner_steps``, R ``outer_steps``, η ``lr`` and the rate of the inner
    steps ``personal_lr``. Both steps may have a momentum, whose velocities stay with the user from
    round to round. What is None is the ``form``'s own: see ``FORMS``.
    """

    form: Literal["authors", "publication"] = "authors"
    strength: NotNegative = 15.0
    inner_steps: Passes | None = None
    outer_steps: Passes | None = None
    momentum: Momentum | None = None
    outer_momentum: Momentum | None = None
    lr: Positive = 0.01
    personal_lr: Positive = 0.01
    batch: BatchSize = 20

    name: ClassVar[str] = "pfedme"
    reference: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    cost: ClassVar[str] = "1 down, 1 up, R K batches of work"
    sharded: ClassVar[bool] = True
    tested_model: ClassVar[str] = "personalised"
    unused: ClassVar[frozenset[str]] = frozenset(
        {"lr", "momentum", "batch", "epochs", "variance_batch"}
    )

    @property
    def settings(self) -> Form:
        """The form's own settings, and what was given instead."""
        given = {
            name: getattr(self, name)
            for name in ("inner_steps", "outer_steps", "momentum", "outer_momentum")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(FORMS[self.form], **given)

    @property
    def repeat(self) -> int:
        """How many inner steps a batch is used for."""
        return 1 if self.settings.continued else self.settings.inner_steps

    def check(self, fed: Federation) -> None:
        """Its steps are its own."""
        if fed.training.optimiser != "sgd" or fed.training.weight_decay:
            raise UcflError(
                "pFedMe has steps of its own; train with optimiser = sgd and weight_decay = 0."
            )

    def training(self, fed: Federation) -> LocalTraining:
        """The round's batches; the steps are its own."""
        form = self.settings
        fresh = form.inner_steps if form.continued else 1
        return LocalTraining(
            self.personal_lr,
            0.0,
            self.batch,
            steps=None if form.outer_steps is None else form.outer_steps * fresh,
            last_batch=fed.training.last_batch,
            schedule=fed.training.schedule,
        )

    def start(self, fed: Federation) -> State:
        """The personal models start from the global one, at rest."""
        still = torch.zeros_like(fed.parts(fed.initial())[0])
        return {
            "theta": fed.initial(),
            "personal": fed.initial(),
            "velocity": still,
            "outer_velocity": still,
        }

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Move each user's w towards its proximal points; average the w."""
        w, rest = fed.parts(tensor(state, "theta"))
        form, factor = self.settings, fed.training.schedule(t)
        velocities = tensor(state, "velocity"), tensor(state, "outer_velocity")
        w, near, rest, near_rest, velocity, outer = fed.iterate(
            Proximal(form.inner_steps, form.continued),
            (w, w, rest, rest, *velocities),
            t,
            self.training(fed),
            hyper=(
                *(factor * self.personal_lr, self.strength, factor * self.lr),
                *(form.momentum, form.outer_momentum),
            ),
            repeat=self.repeat,
        )
        personal = torch.cat([near, near_rest], dim=1)
        average = Mixing.average(fed.sizes).among(fed.present)
        return {
            "theta": fed.exchange(average, torch.cat([w, rest], dim=1), tensor(state, "theta")),
            "personal": fed.kept(personal, tensor(state, "personal")),
            "velocity": velocity,
            "outer_velocity": outer,
        }

    def models(self, state: State) -> Tensor:
        """The personal models."""
        return tensor(state, "personal")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The global model."""
        return tensor(state, "theta")[:1].expand(arrivals.m, -1)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """FedAvg's messages; R K batches are worked on."""
        worked = fed.examples(self.training(fed), repeat=self.repeat)
        return Traffic(down=1, up=1, work=fed.work(worked))
