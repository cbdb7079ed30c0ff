"""All users at once: Θ ∈ R^{m×P} holds user i's model in row i, and training maps Θ to Θ.

Two paths compute the same thing. The *stacked* one takes users in chunks through one vmapped
gradient, with padding masked; in federations that are worth it, its steps are traced into graphs.
The *plain* one takes one user after another by ordinary autograd, without padding: simple to debug.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ucfl.errors import UcflError
from ucfl.federation import evaluation
from ucfl.federation.batches import Batch, Plan, passes
from ucfl.federation.chunks import Chunks
from ucfl.federation.gradients import Gradients, measure
from ucfl.federation.graphs import Function, Graph
from ucfl.federation.layers import KeyedDropout, adapt
from ucfl.federation.local import Step, train_chunk
from ucfl.federation.memory import default_chunk, keep_pages
from ucfl.federation.precision import Precision, computing
from ucfl.federation.rows import Rows
from ucfl.federation.training import LocalTraining, Pull
from ucfl.users import Split, Users

#: Steps in a round from which on they are traced; fewer do not pay for the tracing.
WORTH_TRACING = 16


class Federation:
    """Users, the model they train, and the operations that algorithms are written in.

    ``chunk`` users are stacked at a time (None: as many as suit the device), which changes results
    by rounding at most. ``plain`` takes the debug path instead. ``compiled`` lets PyTorch's
    compiler fuse the steps: faster by another factor, after some seconds of compiling.
    ``precision`` is that of the model's products, see :data:`Precision`.
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
        compiled: bool = False,
        precision: Precision = "default",
    ) -> None:
        self.device = torch.device(device)
        self.precision = precision
        self.users = users.to(self.device)
        self.training = training or LocalTraining()
        self.seed = seed
        self.variance_batch = variance_batch
        self._template = copy.deepcopy(model)
        self._model, self._moment = adapt(model)
        self.keyed = any(isinstance(layer, KeyedDropout) for layer in self._model.modules())
        self._model.to(self.device)
        self.rows = Rows(self._model)
        if self.rows.trainable == 0:
            raise UcflError("the model has no trainable parameter.")
        self._check_model()
        if self.device.type == "cpu":
            keep_pages()
        self.plain = plain
        self.chunk = 1 if plain else chunk or default_chunk(self)
        self.compiled = compiled
        steps = int(self.steps_of(self.training).sum())
        self._traced = not plain and self.device.type in ("cpu", "cuda") and steps >= WORTH_TRACING
        # Only traced steps are free of state, so only those may run at the same time.
        threaded = self._traced and self.device.type == "cpu"
        self.chunks = Chunks(self.m, self.chunk, self.device, plain=plain, threaded=threaded)
        # On a GPU a step's graph cuts its own batch: one launch, and nothing for Python to do.
        self.whole_steps = self._traced and self.device.type == "cuda"
        self._graphs: dict[Any, Graph] = {}
        self._plans: dict[tuple[Tensor, LocalTraining], Plan] = {}
        self._lock = threading.Lock()
        self.equal_size = int(self.sizes[0]) if (self.sizes == self.sizes[0]).all() else None
        # A GPU graph for a last, shorter batch would cost more than its padding.
        self._alike = self.equal_size is not None and self.device.type != "cuda"

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
            compiled=self.compiled,
            precision=self.precision,
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

        def trained(users: Tensor) -> Tensor:
            return train_chunk(self, theta, users, t, pull, training, example_weights)

        return torch.cat(self.chunks.over(trained))

    def steps_of(self, training: LocalTraining) -> Tensor:
        """K_i: how many steps each user takes in a round."""
        if training.steps is not None:
            return torch.full_like(self.sizes, training.steps)
        return passes(self.sizes, torch.full_like(self.sizes, training.batch)) * training.epochs

    def walk(self, t: int, training: LocalTraining) -> Iterator[Step]:
        """The round's batches one after another, for algorithms with a loop of their own."""
        everyone = torch.arange(self.m, device=self.device)
        batch = torch.full_like(self.sizes, training.batch)
        steps = self.steps_of(training)
        schedule = Plan.of(self.users, everyone, batch, steps).drawn(self.seed, t)
        widest = 0 if self._alike else training.batch
        for one in schedule.batches(self.users, widest, keyed=self.keyed):
            yield Step(self, one, training.lr)

    def collaboration_round(self, theta: Tensor, batch: float | None = None) -> Gradients:
        """Each user's full gradient at its row of Θ, and its variance (paper, eq. 9).

        ``batch`` is n_k (None: the federation's ``variance_batch``): a share of the user's data
        if below 1, else a number of examples.
        """
        return measure(self, theta, self.variance_batch if batch is None else batch)

    def plan(self, users: Tensor, training: LocalTraining) -> Plan:
        """What one of the chunks does in every round, made once: a GPU would wait for it."""
        key = users, training
        if key not in self._plans:
            batch, steps = torch.full_like(users, training.batch), self.steps_of(training)[users]
            self._plans[key] = Plan.of(self.users, users, batch, steps)
        return self._plans[key]

    def graph(
        self, kind: Any, function: Function, *arguments: Tensor | None, carried: int = 0
    ) -> tuple[Tensor, ...]:
        """The function of the arguments, traced where that is worth it.

        ``kind`` names the function and the plain values that it was made with.
        """
        if not self._traced:
            with computing(self.precision, self.device):
                return function(*arguments)
        shapes = tuple(a if a is None else (a.shape, a.dtype) for a in arguments)
        key = kind, shapes
        if key not in self._graphs:
            with self._lock, computing(self.precision, self.device):
                if key not in self._graphs:
                    self._graphs[key] = Graph(
                        function, arguments, carried=carried, compiled=self.compiled
                    )
        return self._graphs[key](*arguments)

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
        schedule = Plan.of(self.users, users, batch, steps).drawn(self.seed, t)
        padded = 0 if self._alike or self.plain else widest
        return schedule.batches(self.users, padded, weights, self.keyed)

    def gradient(self, weights: Tensor, rest: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each user's gradient on its batch, and the buffers that came out."""
        slope, rest = self.graph(
            "gradient", self.slopes, weights.contiguous(), rest.contiguous(), *batch.arguments
        )
        return slope, rest

    def slopes(self, weights: Tensor, rest: Tensor, *batch: Any) -> tuple[Tensor, Tensor]:
        """Each user's gradient on its batch, and the buffers that came out, untraced."""
        self._model.train()
        if self.plain or (len(weights) == 1 and not self._traced):
            alone: Any = [a if a is None else a[0] for a in batch]
            leaf = weights[0].detach().requires_grad_()
            loss, new_rest = self.user_loss(leaf, rest[0], *alone)
            (slope,) = torch.autograd.grad(loss, leaf)
            return slope[None], new_rest[None]
        slopes, rests = self.each(grad(self.user_loss, has_aux=True), weights, rest, *batch)
        return slopes, rests

    def each(self, function: Callable[..., Any], *arguments: Tensor | None) -> Any:
        """A function of one user for several, whose arguments are stacked (or None)."""
        if len(arguments[0]) == 1:  # type: ignore[arg-type]
            alone = function(*(a if a is None else a[0] for a in arguments))
            return tuple(a[None] for a in alone) if isinstance(alone, tuple) else alone[None]
        dims = tuple(a if a is None else 0 for a in arguments)
        return vmap(function, in_dims=dims, randomness="different")(*arguments)

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
        losses = F.cross_entropy(outputs.to(weights.dtype), labels, reduction="none")
        if real is not None:
            losses = losses * real
        if importance is not None:
            losses = losses * importance
        return losses.sum() / count, self.rows.rest(tensors)

    # -- evaluation -------------------------------------------------------------------------

    @torch.no_grad()
    def accuracy(self, theta: Tensor, split: Split = "test") -> Tensor:
        """Share of its own examples that each user's model gets right; NaN without examples."""
        return evaluation.accuracy(self, theta, self.users.split(split))

    @torch.no_grad()
    def loss(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """Mean loss of each user's model on its own examples; NaN without examples."""
        return evaluation.loss(self, theta, self.users.split(split))

    @torch.no_grad()
    def outputs(self, theta: Tensor, split: Split = "test") -> Tensor:
        """[m, n, classes]: what each user's model says of its own examples, padding included."""
        return evaluation.outputs(self, theta, self.users.split(split))

    @torch.no_grad()
    def example_losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[m, n]: the loss of each user's model on each of its examples; NaN for padding."""
        return evaluation.example_losses(self, theta, self.users.split(split))

    def forward_work(self, split: Split) -> float:
        """What evaluating one model on a split costs, in FedAvg's local work.

        A forward pass counts a third of a training pass over as many examples.
        """
        share = float(self.users.split(split).sizes.sum() / self.sizes.sum())
        return share / 3 / self.training.epochs

    @torch.no_grad()
    def losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[models, users]: mean loss of model i on user j's examples, for any number of rows."""
        return evaluation.losses(self, theta, self.users.split(split))

    def user_outputs(self, row: Tensor, inputs: Tensor) -> Tensor:
        """What one user's model says of some inputs, nothing being trained."""
        self._model.eval()
        self._moment.real = None
        cut = self.rows.trainable
        tensors = self.rows.tensors(row[:cut], row[cut:])
        outputs: Tensor = functional_call(self._model, tensors, (self._scaled(inputs),))
        return outputs.to(row.dtype)

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
            with torch.no_grad(), computing(self.precision, self.device):
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
