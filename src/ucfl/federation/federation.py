"""All users at once: Θ ∈ R^{m×P} holds user i's model in row i, and training maps Θ to Θ."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ucfl.errors import UcflWarning
from ucfl.execution import Options, Precision, choose, saved_bytes
from ucfl.federation import checks, evaluation
from ucfl.federation.gradients import Gradients, measure
from ucfl.federation.local import SGD, Own
from ucfl.federation.model import LocalModel
from ucfl.federation.rows import Rows
from ucfl.federation.schedule import Batch, Plan
from ucfl.federation.training import LocalTraining, Pull
from ucfl.users import Split, Users


class Federation:
    """Users, the model they train, and the operations that algorithms are written in.

    How things are computed is the ``executor``'s business and changes results by rounding at most;
    it is chosen once, by ``options`` (:class:`ucfl.execution.Options`) and what suits the device.
    """

    def __init__(
        self,
        users: Users,
        model: nn.Module,
        *,
        training: LocalTraining | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        variance_batch: float = 1 / 3,
        **options: Unpack[Options],
    ) -> None:
        self.device = torch.device(device)
        self.users = users.to(self.device)
        self.training = training or LocalTraining()
        self.seed = seed
        self.variance_batch = variance_batch
        self._options: Options = options
        self.model = LocalModel(model, self.device)
        self._plans: dict[Any, Plan] = {}
        self._with_models: dict[Hashable, Federation] = {}
        checks.check(self.model, self.users, precision=self.precision)
        if self.model.couples_examples and not options.get("plain"):
            warnings.warn(
                "what the model says of an example depends on the others of its batch, so batches "
                "cannot be padded; users go one after another: slower.",
                UcflWarning,
                stacklevel=2,
            )
            self._options = {**options, "plain": True}
        self.executor = choose(
            users=self.m,
            steps=sum(self._plan(self.training).counts),
            batch=self.training.batch,
            bytes_per_user=self._bytes_per_user,
            device=self.device,
            **self._options,
        )

    @property
    def m(self) -> int:
        """The number of users."""
        return len(self.users)

    @property
    def sizes(self) -> Tensor:
        """n_i: how many training examples each user has."""
        return self.users.train.sizes

    @property
    def groups(self) -> Tensor | None:
        """The group that each user truly belongs to, where the scenario knows it."""
        return self.users.groups

    @property
    def rows(self) -> Rows:
        """Where each of the model's parameters and buffers lies in a row of Θ."""
        return self.model.rows

    @property
    def precision(self) -> Precision:
        """Of the model's products."""
        return self._options.get("precision", "default")

    def initial(self) -> Tensor:
        """Θ⁰: the same model for every user (one row in memory, seen m times)."""
        return self.rows.initial.to(self.device).expand(self.m, -1)

    def module(self, row: Tensor) -> nn.Module:
        """The model of a row of Θ, to be used outside the federation."""
        return self.rows.module(row, self.model.template).eval()

    def with_model(self, key: Hashable, make: Callable[[Federation], nn.Module]) -> Federation:
        """The same users with another model, made once for each ``key``."""
        if key not in self._with_models:
            self._with_models[key] = Federation(
                self.users,
                make(self),
                training=self.training,
                device=self.device,
                seed=self.seed,
                variance_batch=self.variance_batch,
                **self._options,
            )
        return self._with_models[key]

    # -- training ---------------------------------------------------------------------------

    def train(
        self,
        theta: Tensor,
        t: int,
        pull: Pull | None = None,
        training: LocalTraining | None = None,
        example_weights: Tensor | None = None,
    ) -> Tensor:
        """Local SGD for every user in round t, from its row of Θ; the new Θ.

        The batches depend on (seed, t, user) alone. ``example_weights`` [m, n] scale the losses
        of the users' training examples.
        """
        training, pull = training or self.training, pull or Pull()
        weights, rest = self.parts(theta)
        weights, rest = self.executor.iterate(
            SGD(self.model),
            (weights, torch.zeros_like(weights), rest),
            self._plan(training).drawn(self.users, self.executor, self.seed, t, example_weights),
            hyper=self.numbers(training.lr, training.momentum, pull.strength),
            constants=pull.rows(self.m, self.rows),
            wanted=(0, 2),  # the velocity starts anew in every round
        )
        return torch.cat([weights, rest], dim=1) if rest.numel() else weights

    def iterate(
        self,
        update: Callable[..., tuple[Tensor, ...]],
        state: tuple[Tensor, ...],
        t: int,
        training: LocalTraining,
        *,
        hyper: tuple[float, ...] = (),
        repeat: int = 1,
    ) -> tuple[Tensor, ...]:
        """A local loop of an algorithm's own: its state [m, ...] after the round's batches.

        ``update(gradient, number, state, constants, hyper)`` is one step of one user, a pure and
        hashable function, where ``gradient(weights, rest)`` is that of its batch and the buffers
        that come out; each batch is used ``repeat`` times in a row.
        """
        return self.executor.iterate(
            Own(self.model, update),
            state,
            self._plan(training, repeat).drawn(self.users, self.executor, self.seed, t),
            hyper=self.numbers(*hyper),
        )

    def parts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Θ's trainable parameters, and the rest: frozen ones and buffers."""
        cut = self.rows.trainable
        return theta[:, :cut].contiguous(), theta[:, cut:].contiguous()

    def numbers(self, *values: float) -> tuple[Tensor, ...]:
        """Hyper-parameters as what they are to a step: tensors, so that they may change."""
        return tuple(torch.full((), v, dtype=self.rows.dtype, device=self.device) for v in values)

    def steps_of(self, training: LocalTraining) -> Tensor:
        """K_i: how many steps each user takes in a round."""
        return self._plan(training).steps

    def collaboration_round(self, theta: Tensor, batch: float | None = None) -> Gradients:
        """Each user's full gradient at its row of Θ, and its variance (paper, eq. 9).

        ``batch`` is n_k (None: the federation's ``variance_batch``): a share of the user's data
        if below 1, else a number of examples.
        """
        return measure(self, theta, self.variance_batch if batch is None else batch)

    def _plan(self, training: LocalTraining, repeat: int = 1) -> Plan:
        """Made once for each way of training: a device would be waited for."""
        # The rates do not matter here: a schedule of them is one plan.
        key = training.batch, training.epochs, training.steps, training.last_batch, repeat
        if key not in self._plans:
            steps = training.steps
            self._plans[key] = Plan.of(
                self.sizes,
                torch.full_like(self.sizes, training.batch),
                None if steps is None else torch.full_like(self.sizes, steps),
                epochs=training.epochs,
                last=training.last_batch,
                keyed=self.model.keyed,
                repeat=repeat,
            )
        return self._plans[key]

    def _bytes_per_user(self) -> float:
        """Memory that one more user takes: its rows, and what autograd saves of a batch."""
        train, row = self.users.train, self.rows.initial.to(self.device)
        one, cut = torch.ones((), dtype=torch.int64, device=self.device), self.rows.trainable
        example = Batch(train.inputs[0, :1], train.labels[0, :1], None, None, one, one, one, one)
        saved = saved_bytes(
            lambda: self.model.loss(row[:cut].clone().requires_grad_(), row[cut:], example)
        )
        # The backward pass needs about as much again, and some of its inputs are copied.
        return 3.0 * saved * self.training.batch + 8.0 * row.element_size() * self.rows.size

    # -- evaluation -------------------------------------------------------------------------

    def accuracy(self, theta: Tensor, split: Split = "test") -> Tensor:
        """Share of its own examples that each user's model gets right; NaN without examples."""
        return evaluation.mean_score(self, theta, self.users.split(split), evaluation.correct)

    def loss(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """Mean loss of each user's model on its own examples; NaN without examples."""
        return evaluation.mean_score(self, theta, self.users.split(split), evaluation.cross_entropy)

    def outputs(self, theta: Tensor, split: Split = "test") -> Tensor:
        """[m, n, classes]: what each user's model says of its own examples, padding included."""
        return evaluation.outputs(self, theta, self.users.split(split))

    def example_losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[m, n]: the loss of each user's model on each of its examples; NaN for padding."""
        return evaluation.example_losses(self, theta, self.users.split(split))

    def losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[models, users]: mean loss of model i on user j's examples, for any number of rows."""
        return evaluation.losses(self, theta, self.users.split(split))

    # -- what it costs ----------------------------------------------------------------------

    def examples(self, training: LocalTraining, repeat: int = 1) -> int:
        """How many examples all users train on in a round."""
        return self._plan(training, repeat).examples

    def work(self, examples: float) -> float:
        """What training on so many examples costs, in units of FedAvg's local work."""
        return examples / self.examples(self.training)

    def forward_work(self, split: Split) -> float:
        """What evaluating one model on a split costs, in units of FedAvg's local work.

        A forward pass counts a third of a training pass over as many examples.
        """
        return self.work(int(self.users.split(split).sizes.sum())) / 3
