"""All users at once: Θ ∈ R^{m×P} holds user i's model in row i, and training maps Θ to Θ."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ucfl.errors import UcflWarning, check_name
from ucfl.execution import (
    Batches,
    Options,
    Precision,
    Step,
    Tensors,
    choose,
    for_mixture,
    saved_bytes,
)
from ucfl.federation import checks, evaluation, prototypes
from ucfl.federation.divergence import check_finite
from ucfl.federation.gradients import Gradients, measure
from ucfl.federation.local import LocalStep, Own
from ucfl.federation.memory import Memory
from ucfl.federation.metrics import Metric
from ucfl.federation.model import LocalModel
from ucfl.federation.objective import CLASSIFICATION, Objective
from ucfl.federation.optimisers import OPTIMISERS
from ucfl.federation.prototypes import Prototypes
from ucfl.federation.rows import Rows
from ucfl.federation.schedule import Batch, Plan
from ucfl.federation.training import LocalTraining, Pull
from ucfl.federation.wire import Links, Message, Mixed, Wire
from ucfl.memory import check_fits
from ucfl.options import check_seed
from ucfl.parts import Part
from ucfl.users import Split, Users


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def _everyone(t: int) -> None:
    """The cohort of a round in which all users take part."""


class Federation:
    """Users, the model they train, and the operations that algorithms are written in.

    How things are computed is the ``executor``'s business and changes results by rounding at most;
    it is chosen once, by ``options`` (:class:`ucfl.execution.Options`) and what suits the device.

    ``cohort(t)`` [m] marks who takes part in round t, and :meth:`among` gives the federation of
    those alone, whose ``present`` that is (None: everyone): only they train and evaluate, and
    algorithms mix what is theirs. Models that are no longer finite are told by :class:`Diverged`.
    Where these are a share of the users, ``gathered`` gives all users' rows from theirs. Where
    users are on machines of their own, ``server`` takes a user's rows and gives what the server
    makes of everyone's (None: all users are here).
    """

    def __init__(
        self,
        users: Users,
        model: nn.Module,
        *,
        objective: Objective = CLASSIFICATION,
        training: LocalTraining | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        variance_batch: float = 1 / 3,
        gathered: Callable[[Tensor], Tensor] = _as_it_is,
        cohort: Callable[[int], Tensor | None] = _everyone,
        links: Links | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.device = torch.device(device)
        self.users = users.to(self.device)
        self.training = training or LocalTraining()
        check_name("optimiser", self.training.optimiser, OPTIMISERS)
        self.seed = seed
        self.variance_batch = variance_batch
        self.gathered = gathered
        self.cohort = cohort
        self.links = links or Links()
        self.server: Callable[[Tensor], Tensor] | None = None
        self._options: Options = options
        check_seed(seed)
        self.model = LocalModel(model, objective, self.device)
        check_fits(
            float(len(users)) * self.rows.size * self.rows.dtype.itemsize,
            f"{len(users)} users' models of {self.rows.size:,} parameters",
            "take fewer users or a smaller model",
            self.device,
        )
        self.present: Tensor | None = None
        self._here: tuple[Tensor, list[int]] | None = None
        self.memory = Memory()
        self.wire = Wire(self.links)
        self._plans: dict[Any, Plan] = {}
        self._with_models: dict[Hashable, Federation] = {}
        self._parts: dict[Hashable, LocalModel] = {}
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
    def objective(self) -> Objective:
        """What training minimises, and what models are judged by."""
        return self.model.objective

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

    def part(self, name: str) -> Part:
        """The columns of Θ that hold a part of the model: ``head``, ``body``, a layer's name."""
        return self.rows.part(name)

    def among(
        self, present: Tensor | None, memory: Memory | None = None, wire: Wire | None = None
    ) -> Federation:
        """The same federation with some users absent, and with what a round remembers."""
        fed = copy.copy(self)
        fed.memory, fed.wire = memory or Memory(), wire or Wire(self.links)
        fed.present, fed._here = None, None
        if present is not None:  # all of these, too: other processes may have absent users
            fed.present = present.to(self.device)
            here = torch.nonzero(present)[:, 0]
            fed._here = here.to(self.device), here.tolist()
        return fed

    @property
    def here(self) -> Tensor | None:
        """The places of the users that are present; None: everyone's."""
        return None if self._here is None else self._here[0]

    def kept(self, new: Tensor, old: Tensor) -> Tensor:
        """New rows of those who are present, old ones of absent users."""
        if self.present is None:
            return new
        return torch.where(self.present.view(-1, *[1] * (new.dim() - 1)), new, old)

    def with_model(self, key: Hashable, make: Callable[[Federation], nn.Module]) -> Federation:
        """The same users with another model, made once for each ``key``."""
        if key not in self._with_models:
            self._with_models[key] = self._again(
                self.users,
                make(self),
                gathered=self.gathered,
                cohort=self.cohort,
                links=self.links,
                **for_mixture(self._options),
            )
        return self._with_models[key].among(self.present, self.memory, self.wire)

    def of(self, users: Users) -> Federation:
        """Other users with the same model, objective and training; everyone is present."""
        return self._again(users, copy.deepcopy(self.model.template), **self._options)

    def _again(self, users: Users, model: nn.Module, **others: Any) -> Federation:
        """A federation with the same settings."""
        return Federation(
            users,
            model,
            objective=self.objective,
            training=self.training,
            device=self.device,
            seed=self.seed,
            variance_batch=self.variance_batch,
            **others,
        )

    # -- what is sent ------------------------------------------------------------------------

    def exchange(self, mixing: Mixed, rows: Tensor, since: Tensor) -> Tensor:
        """WΘ as users receive it: rows of Θ go up, streams come down, both as the links let them.

        ``since`` are the rows that users had received before (their columns that are mixed), which
        both sides know: what is sent is the change since then. Without compression, ``mixing @
        rows``.
        """
        if self.links.compresses("uplink"):
            sent = (each for _, part in mixing.products(self.rows.size) for each in part.ranges)
            rows = self._up(rows, since, Part.joined("", sent, self.rows.size))
        return self.downlink(mixing, mixing @ rows, since)

    def uplink(self, rows: Tensor, since: Tensor) -> Tensor:
        """Whole rows as the server has them, for methods that look at users' models there."""
        whole = Part.joined("", [(0, self.rows.size)], self.rows.size)
        return self._up(rows, since, whole) if self.links.compresses("uplink") else rows

    def downlink(self, mixing: Mixed, mixed: Tensor, since: Tensor) -> Tensor:
        """Mixed rows as users have them, each stream of ``mixing`` being one message."""
        if not self.links.compresses("downlink"):
            return mixed
        for streams, part in mixing.products(self.rows.size):
            mixed = self.wire.down(mixed, since, Message.of(part, self.rows), streams)
        return mixed

    def _up(self, rows: Tensor, since: Tensor, part: Part) -> Tensor:
        if not part.count:
            return rows
        return self.wire.up(rows, since, Message.of(part, self.rows), self.users.ids, self.here)

    # -- training ---------------------------------------------------------------------------

    def train(
        self,
        theta: Tensor,
        t: int,
        pull: Pull | None = None,
        training: LocalTraining | None = None,
        example_weights: Tensor | None = None,
        only: Part | None = None,
        draw: int = 0,
    ) -> Tensor:
        """Local training of every present user in round t, from its row of Θ; the new Θ.

        The batches depend on (seed, t, user) alone, and on ``draw`` where a round has several
        passes with batches of their own. ``example_weights`` [m, n] scale the losses of the users'
        training examples.

        With ``only``, columns outside of that part of the model stay as they are, buffers too:
        their parameters have no gradient, no weight decay and no optimiser's state. Layers outside
        of it are in training mode all the same: BatchNorm normalises by its batch there.
        """
        training, pull = training or self.training, pull or Pull()
        model = self.model if only is None else self._only(only)
        rows, theirs = model.rows, self._theirs(theta)
        weights, rest = (part.of(theirs).contiguous() for part in (rows.trained, rows.moving))
        optimiser = OPTIMISERS[training.optimiser]
        own = self.memory.recalled(training, optimiser.start(weights), self.here)
        decay = [training.weight_decay] if training.weight_decay else []
        weights, rest, *own_now = self._iterate(
            LocalStep(model, optimiser),
            (weights, rest, *own),
            self._drawn(self._plan(training), t, example_weights, draw),
            hyper=self.numbers(training.rate(t), training.momentum, pull.strength, *decay),
            constants=(
                *(None if row is None else self._theirs(row) for row in pull.rows(self.m, rows)),
                rows.fixed.of(theirs) if rows.fixed.count else None,
            ),
            wanted=range(2 + len(own)) if training.optimiser_state == "keep" else (0, 1),
            t=t,
        )
        self.memory.keep(own_now, self.here, self.m)
        if only is not None:
            return self._with(theta, rows.moving.put(rows.trained.put(theirs, weights), rest))
        return self._with(theta, torch.cat([weights, rest], dim=1) if rest.numel() else weights)

    def _only(self, part: Part) -> LocalModel:
        """The model with everything outside of a part fixed; made once, since steps know it."""
        if part.ranges not in self._parts:
            self._parts[part.ranges] = self.model.only(part)
        return self._parts[part.ranges]

    def iterate(
        self,
        update: Callable[..., tuple[Tensor, ...]],
        state: tuple[Tensor, ...],
        t: int,
        training: LocalTraining,
        *,
        hyper: tuple[float, ...] = (),
        repeat: int = 1,
        share: float = 1.0,
    ) -> tuple[Tensor, ...]:
        """A local loop of an algorithm's own: its state [m, ...] after the round's batches.

        ``update(gradient, number, state, constants, hyper)`` is one step of one user, a pure and
        hashable function, where ``gradient(weights, rest)`` is that of its batch and the buffers
        that come out; each batch is used ``repeat`` times in a row. With a ``share`` below 1, the
        batches are as many full ones (one at least) as that part of the user's data fills.
        """
        found = self._iterate(
            Own(self.model, update),
            tuple(map(self._theirs, state)),
            self._drawn(self._plan(training, repeat, share), t),
            hyper=self.numbers(*hyper),
            constants=(),
            wanted=range(len(state)),
            t=t,
        )
        return tuple(map(self._with, state, found))

    def _iterate(
        self,
        step: Step,
        state: tuple[Tensor, ...],
        batches: Batches,
        *,
        hyper: tuple[Tensor, ...],
        constants: Tensors,
        wanted: Sequence[int],
        t: int,
    ) -> tuple[Tensor, ...]:
        """The executor's loop for the users that are present, whose state this is."""
        before = tuple(state[place] for place in wanted)
        after = before
        if len(state[0]):
            after = self.executor.iterate(step, state, batches, hyper, constants, wanted)
        check_finite(self, before, after, t)
        return after

    def _theirs(self, rows: Tensor) -> Tensor:
        """Of everyone's rows, those of the users that are present."""
        return rows if self.here is None else rows[self.here]

    def _with(self, rows: Tensor, theirs: Tensor) -> Tensor:
        """Everyone's rows with new ones of those who are present."""
        return theirs if self.here is None else rows.index_copy(0, self.here, theirs)

    def _drawn(self, plan: Plan, t: int, weights: Tensor | None = None, draw: int = 0) -> Batches:
        """The batches of round t, of the users that are present."""
        return plan.drawn(self.users, self.executor, self.seed, t, weights, self._here, draw)

    def parts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Θ's trainable parameters, and the rest: frozen ones and buffers."""
        cut = self.rows.trainable
        return theta[:, :cut].contiguous(), theta[:, cut:].contiguous()

    def numbers(self, *values: float) -> tuple[Tensor, ...]:
        """Hyper-parameters as what they are to a step: tensors, so that they may change."""
        return tuple(_number(v, self.rows.dtype, self.device) for v in values)

    def steps_of(self, training: LocalTraining) -> Tensor:
        """K_i: how many steps each user takes in a round."""
        return self._plan(training).steps

    def collaboration_round(self, theta: Tensor, batch: float | None = None) -> Gradients:
        """Each user's full gradient at its row of Θ, and its variance (paper, eq. 9).

        ``batch`` is n_k (None: the federation's ``variance_batch``): a share of the user's data
        if below 1, else a number of examples.
        """
        return measure(self, theta, self.variance_batch if batch is None else batch)

    def prototypes(
        self, theta: Tensor, largest: float | None = None, like: Federation | None = None
    ) -> Prototypes:
        """What each user's training examples look like to its row of Θ, class by class.

        Features are what the model's last layer is given; ``largest`` bounds their length. Numbers
        are put into the bins of the users of ``like``, if given.
        """
        return prototypes.measure(self, theta, largest, like)

    def _plan(self, training: LocalTraining, repeat: int = 1, share: float = 1.0) -> Plan:
        """Made once for each way of training: a device would be waited for."""
        # The rates do not matter here: a schedule of them is one plan.
        key = training.batch, training.epochs, training.steps, training.last_batch, repeat, share
        if key not in self._plans:
            steps = None if training.steps is None else torch.full_like(self.sizes, training.steps)
            if share < 1:
                steps = (share * self.sizes.double() // training.batch).long().clamp(min=1)
            self._plans[key] = Plan.of(
                self.sizes,
                torch.full_like(self.sizes, training.batch),
                steps,
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
        example = Batch(train.inputs[0, :1], train.targets[0, :1], None, None, one, one, one, one)
        saved = saved_bytes(
            lambda: self.model.loss(row[:cut].clone().requires_grad_(), row[cut:], example)
        )
        # The backward pass needs about as much again, and some of its inputs are copied.
        return 3.0 * saved * self.training.batch + 8.0 * row.element_size() * self.rows.size

    # -- evaluation -------------------------------------------------------------------------

    def metrics(self, theta: Tensor, split: Split = "test") -> dict[str, Tensor]:
        """The objective's metrics [m] of users' models on their own examples; NaN without any."""
        return evaluation.measured(self, theta, self.users.split(split), self.objective.measured)

    def metric(self, theta: Tensor, split: Split = "test") -> Tensor:
        """[m]: the first of them, which methods are judged by; accuracy in classification."""
        name, first = next(iter(self.objective.measured.items()))
        return evaluation.measured(self, theta, self.users.split(split), {name: first})[name]

    def loss(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """Mean loss of each user's model on its own examples; NaN without examples."""
        loss = {"loss": Metric(self.objective.loss)}
        return evaluation.measured(self, theta, self.users.split(split), loss)["loss"]

    def outputs(self, theta: Tensor, split: Split = "test") -> Tensor:
        """[m, n, ...]: what each user's model says of its own examples, padding included."""
        return evaluation.outputs(self, theta, self.users.split(split))

    def example_losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[m, n]: the loss of each user's model on each of its examples; NaN for padding."""
        return evaluation.example_losses(self, theta, self.users.split(split))

    def losses(self, theta: Tensor, split: Split = "validation") -> Tensor:
        """[models, users]: mean loss of model i on user j's examples, for any number of rows."""
        return evaluation.losses(self, theta, self.users.split(split))

    # -- what it costs ----------------------------------------------------------------------

    def examples(self, training: LocalTraining, repeat: int = 1, share: float = 1.0) -> int:
        """How many examples the present users train on in a round, in all processes."""
        each = torch.tensor(self._plan(training, repeat, share).examples, device=self.device)
        return self.total(each)

    def total(self, counts: Tensor) -> int:
        """The sum of numbers [m] over the present users of all processes."""
        return int(self.gathered(self._theirs(counts).sum()[None]).sum())

    def work(self, examples: float) -> float:
        """What training on so many examples costs, in units of FedAvg's local work."""
        return examples / max(1, self.examples(self.training))

    def forward_work(self, split: Split) -> float:
        """What evaluating one model on a split costs, in units of FedAvg's local work.

        A forward pass counts a third of a training pass over as many examples.
        """
        return self.work(self.total(self.users.split(split).sizes)) / 3


@lru_cache(maxsize=256)
def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A constant on a device; made once, since putting it there takes as long as a small step."""
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device=device)
