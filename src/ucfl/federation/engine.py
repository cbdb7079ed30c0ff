"""All users at once: Θ ∈ R^{m×P} holds user i's model in row i, and training maps Θ to Θ.

Two paths compute the same thing. The *stacked* one takes users in chunks through one vmapped
gradient, with padding masked. The *plain* one takes one user after another by ordinary autograd,
without padding: slow on a GPU, simple to debug.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ucfl.errors import UcflError
from ucfl.federation.batches import Batch, batches, passes
from ucfl.federation.gradients import Gradients, measure
from ucfl.federation.layers import adapt
from ucfl.federation.memory import default_chunk
from ucfl.federation.rows import Rows
from ucfl.federation.training import LocalTraining, Pull
from ucfl.users import Examples, Split, Users

#: Examples that go through one model at a time when nothing is trained.
EVALUATION_BATCH = 1024


class Federation:
    """Users, the model they train, and the operations that algorithms are written in.

    ``chunk`` users are stacked at a time (None: as many as suit the device), which changes results
    by rounding at most. ``plain`` takes the debug path instead.
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
        chunk: int | None = None,
        plain: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.users = users.to(self.device)
        self.training = training or LocalTraining()
        self.seed = seed
        self.variance_batch = variance_batch
        self._template = copy.deepcopy(model)
        self._model, self._moment = adapt(model)
        self._model.to(self.device)
        self.rows = Rows(self._model)
        if self.rows.trainable == 0:
            raise UcflError("the model has no trainable parameter.")
        self._check_model()
        self.plain = plain or self.m == 1
        self.chunk = 1 if self.plain else chunk or default_chunk(self)
        self._alike = bool((self.sizes == self.sizes[0]).all())

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

    def initial(self) -> Tensor:
        """Θ⁰: the same model for every user (one row in memory, seen m times)."""
        return self.rows.initial.to(self.device).expand(self.m, -1)

    def module(self, row: Tensor) -> nn.Module:
        """The model of a row of Θ, to be used outside the federation."""
        return self.rows.module(row, self._template).eval()

    def with_model(self, model: nn.Module) -> Federation:
        """The same users with another model."""
        return Federation(
            self.users,
            model,
            training=self.training,
            device=self.device,
            seed=self.seed,
            variance_batch=self.variance_batch,
            chunk=self.chunk,
            plain=self.plain,
        )

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
        training = training or self.training
        return torch.cat(
            [
                self._train_chunk(theta, users, t, pull, training, example_weights)[:real]
                for users, real in self.chunks()
            ]
        )

    def steps_of(self, training: LocalTraining) -> Tensor:
        """K_i: how many steps each user takes in a round."""
        if training.steps is not None:
            return torch.full_like(self.sizes, training.steps)
        return passes(self.sizes, torch.full_like(self.sizes, training.batch)) * training.epochs

    def walk(self, t: int, training: LocalTraining) -> Iterator[Step]:
        """The round's batches one after another, for algorithms with a loop of their own."""
        everyone = torch.arange(self.m, device=self.device)
        batch = torch.full_like(self.sizes, training.batch)
        padded = 0 if self._alike else training.batch
        for one in batches(
            self.users, everyone, self.seed, t, batch, self.steps_of(training), padded
        ):
            yield Step(self, one, training.lr)

    def _train_chunk(
        self,
        theta: Tensor,
        users: Tensor,
        t: int,
        pull: Pull | None,
        training: LocalTraining,
        example_weights: Tensor | None,
    ) -> Tensor:
        cut = self.rows.trainable
        weights, rest = theta[users, :cut], theta[users, cut:]
        velocity = torch.zeros_like(weights)
        added = pull.at(users, cut) if pull else None
        batch = torch.full_like(users, training.batch)
        steps = self.steps_of(training)[users]
        for step in self.batches_of(users, t, batch, steps, training.batch, example_weights):
            slope, new_rest = self.gradient(weights, rest, step)
            if added is not None:
                slope = slope + added(weights)
            new_velocity = training.momentum * velocity + slope
            new_weights = weights - training.lr * new_velocity
            if step.idle is not None:
                new_velocity = torch.where(step.idle, velocity, new_velocity)
                new_weights = torch.where(step.idle, weights, new_weights)
                new_rest = torch.where(step.idle, rest, new_rest)
            velocity, weights, rest = new_velocity, new_weights, new_rest
        return torch.cat([weights, rest], dim=1)

    def collaboration_round(self, theta: Tensor, batch: float | None = None) -> Gradients:
        """Each user's full gradient at its row of Θ, and its variance (paper, eq. 9).

        ``batch`` is n_k (None: the federation's ``variance_batch``): a share of the user's data
        if below 1, else a number of examples.
        """
        return measure(self, theta, self.variance_batch if batch is None else batch)

    def chunks(self, chunk: int | None = None) -> Iterator[tuple[Tensor, int]]:
        """Users to stack, and how many of them are real.

        A lone user brings its twin: backends compute one model alone with other kernels than
        several, and rounding differences grow from round to round. With two or more, the bits of
        a user's result were the same for every chunk with LeNet-5 and VGG on the CPUs tried.
        """
        for users in torch.arange(self.m, device=self.device).split(chunk or self.chunk):
            if self.plain:
                yield from ((user[None], 1) for user in users)
            else:
                yield (users if len(users) > 1 else users.repeat(2)), len(users)

    def batches_of(
        self,
        users: Tensor,
        t: int,
        batch: Tensor,
        steps: Tensor,
        widest: int,
        weights: Tensor | None = None,
    ) -> Iterator[Batch]:
        """The training batches of some users, ``widest`` the largest of their batch sizes."""
        padded = 0 if self._alike or self.plain else widest
        return batches(self.users, users, self.seed, t, batch, steps, padded, weights)

    def gradient(self, weights: Tensor, rest: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each user's gradient on its batch, and the buffers that came out."""
        self._model.train()
        if self.plain:
            arguments: Any = [a if a is None else a[0] for a in batch.arguments]
            leaf = weights[0].detach().requires_grad_()
            loss, new_rest = self.user_loss(leaf, rest[0], *arguments)
            (slope,) = torch.autograd.grad(loss, leaf)
            return slope[None], new_rest[None]
        dims = (0, 0, *(a if a is None else 0 for a in batch.arguments))
        gradient: Any = vmap(
            grad(self.user_loss, has_aux=True), in_dims=dims, randomness="different"
        )
        slopes, new_rests = gradient(weights, rest, *batch.arguments)
        return slopes, new_rests

    def user_loss(
        self,
        weights: Tensor,
        rest: Tensor,
        inputs: Tensor,
        labels: Tensor,
        real: Tensor | None,
        importance: Tensor | None,
        count: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Mean loss of one user's model on its batch, and the buffers that came out."""
        tensors = self.rows.tensors(weights, rest)
        self._moment.real, self._moment.key = real, key
        outputs = functional_call(self._model, tensors, (self._scaled(inputs),))
        losses = F.cross_entropy(outputs, labels, reduction="none")
        if real is not None:
            losses = losses * real
        if importance is not None:
            losses = losses * importance
        return losses.sum() / count, self.rows.rest(tensors)

    # -- evaluation -------------------------------------------------------------------------

    @torch.no_grad()
    def accuracy(self, theta: Tensor, split: Split = "test") -> Tensor:
        """Share of its own examples that each user's model gets right; NaN without examples."""
        data = self.users.split(split)
        right = self._per_user(theta, data, lambda out, labels: out.argmax(-1) == labels)
        return right / data.sizes

    @torch.no_grad()
    def loss(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """Mean loss of each user's model on its own examples; NaN without examples."""
        data = self.users.split(split)
        return self._per_user(theta, data, _each_loss) / data.sizes

    @torch.no_grad()
    def outputs(self, theta: Tensor, split: Split = "test") -> Tensor:
        """[m, n, classes]: what each user's model says of its own examples, padding included."""
        data = self.users.split(split)
        self._model.eval()
        self._moment.real = None
        return torch.cat(
            [self._chunk_outputs(theta[users], data.inputs[users])[:real]
             for users, real in self.chunks()]
        )  # fmt: skip

    @torch.no_grad()
    def losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[models, users]: mean loss of model i on user j's examples, for any number of rows."""
        data = self.users.split(split)
        self._model.eval()
        inputs, labels = data.inputs[data.real], data.labels[data.real]
        owner = torch.arange(self.m, device=self.device)[:, None].expand_as(data.real)[data.real]
        table = theta.new_zeros(len(theta), self.m)
        for i, row in enumerate(theta):
            for part in torch.arange(len(labels), device=self.device).split(EVALUATION_BATCH):
                out = self._outputs(row, inputs[part])
                table[i].index_add_(0, owner[part], _each_loss(out, labels[part]))
        return table / data.sizes

    def _outputs(self, row: Tensor, inputs: Tensor) -> Tensor:
        cut = self.rows.trainable
        tensors = self.rows.tensors(row[:cut], row[cut:])
        outputs: Tensor = functional_call(self._model, tensors, (self._scaled(inputs),))
        return outputs

    def _per_user(
        self, theta: Tensor, data: Examples, score: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Sum of a score over each user's real examples, computed with the user's own row."""
        self._model.eval()
        self._moment.real = None
        totals = []
        for users, real in self.chunks():
            longest = int(data.sizes[users].max())
            total = theta.new_zeros(len(users))
            for start in range(0, longest, EVALUATION_BATCH):
                part = slice(start, min(start + EVALUATION_BATCH, longest))
                out = self._chunk_outputs(theta[users], data.inputs[users, part])
                scores = score(out, data.labels[users, part])
                total += (scores * data.real[users, part]).sum(-1)
            totals.append(total[:real])
        return torch.cat(totals)

    def _chunk_outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        if self.plain:
            return self._outputs(rows[0], inputs[0])[None]
        outputs: Tensor = vmap(self._outputs)(rows, inputs)
        return outputs

    # -- fitting the model, the data and the device together --------------------------------

    def _scaled(self, inputs: Tensor) -> Tensor:
        """Bytes become numbers in [0, 1]; other numbers stay; both in the model's precision."""
        if inputs.dtype == torch.uint8:
            return inputs.to(self.rows.dtype) / 255
        return inputs.to(self.rows.dtype) if inputs.is_floating_point() else inputs

    def _check_model(self) -> None:
        """Fail early, in one sentence, where the model does not fit the data."""
        self._model.eval()
        try:
            with torch.no_grad():
                out = self._model(self._scaled(self.users.train.inputs[0, :1]))
        except Exception as error:  # whatever the person's model raises
            raise UcflError(
                f"the model does not take inputs of shape {self.users.input_shape}: {error}."
            ) from error
        if out.shape != (1, self.users.classes):
            raise UcflError(
                f"the model gives outputs of shape {tuple(out.shape[1:])} for data with "
                f"{self.users.classes} classes."
            )


@dataclass(frozen=True)
class Step:
    """One batch of every user; calling it takes one step of plain SGD from any Θ."""

    fed: Federation
    batch: Batch
    lr: float

    @property
    def idle(self) -> Tensor | None:
        """[m, 1] mask of the users that have had all their batches (None: nobody)."""
        return self.batch.idle

    def __call__(self, theta: Tensor, pull: Pull | None = None) -> Tensor:
        """θ − lr · (gradient + pull), with the buffers that the batch leaves behind."""
        fed, cut = self.fed, self.fed.rows.trainable
        parts = []
        for users, real in fed.chunks():
            part = self.batch.part(users)
            weights, rest = theta[users, :cut], theta[users, cut:]
            slope, rest = fed.gradient(weights, rest, part)
            if pull:
                slope = slope + pull.at(users, cut)(weights)
            parts.append(torch.cat([weights - self.lr * slope, rest], 1)[:real])
        after = torch.cat(parts)
        return after if self.idle is None else torch.where(self.idle, theta, after)


def _each_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every example, for outputs [..., classes]."""
    flat = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)
