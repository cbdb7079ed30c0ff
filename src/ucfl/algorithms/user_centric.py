"""User-centric federated learning: every user gets its own mixture of everyone's models."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ucfl import distributed
from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.algorithms.sampled import NETWORKS, packed, sampled, unpacked, untrained
from ucfl.collaboration import (
    Collaboration,
    Diagnosis,
    Mixing,
    choose_streams,
    collaboration_weights,
    distances_between,
    fixed_streams,
    gradient_distances,
    newcomer_weights,
    noise_floor,
    sketch,
    spread,
)
from ucfl.collaboration.streams import MOST_STREAMS
from ucfl.errors import UcflError, UcflWarning
from ucfl.federation import Federation, Gradients
from ucfl.options import VarianceBatch
from ucfl.wireless import Traffic

#: Users up to which ``auto`` tries every k there is. (Where k is given, silhouettes are only
#: reported.)
EVERY_K = 1000


@dataclass(frozen=True)
class UserCentric(Algorithm):
    """θ_i ← Σ_j w_ij θ_j, w from one collaboration round (paper, Algorithm 1, eq. 7 and 8).

    ``streams``: ``all`` (one per user), ``auto`` (the silhouette decides, Algorithm 2) or k.
    ``variance_batch``: n_k of eq. 9; None takes the scenario's. ``sketch``: how many numbers a user
    sends of its gradient in the collaboration round (0: all), see :func:`sketch`. ``likeness``:
    what W is made of, the paper's gradients or class prototypes, whose distances are blind to which
    labels users have (:meth:`Pairs.kernel`); n_k is the kernel's width with either.
    """

    streams: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["all", "auto"] = "all"
    variance_batch: VarianceBatch | None = None
    sketch: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    likeness: Literal["gradients", "prototypes"] = "gradients"

    name: ClassVar[str] = "user-centric"
    reference: ClassVar[str] = "paper, Algorithms 1 and 2"
    cost: ClassVar[str] = "k down, 1 up; once: 1 down, 1 up"
    sharded: ClassVar[bool] = True
    streams_can_be_chosen: ClassVar[bool] = True
    deployable: ClassVar[bool] = True
    tested_model: ClassVar[str] = "aggregated"

    @property
    def unused(self) -> frozenset[str]:  # type: ignore[override]
        """The scenario's n_k, where it has its own."""
        return frozenset() if self.variance_batch is None else frozenset({"variance_batch"})

    def check(self, fed: Federation) -> None:
        """As many streams as users, and as many numbers as the model has, at most."""
        m = len(distributed.gathered(fed.sizes))
        if isinstance(self.streams, int) and self.streams > m:
            raise UcflError(f"{self.streams} streams do not fit {m} users; choose 1..{m}.")
        if self.sketch and self.likeness == "prototypes":
            raise UcflError(
                "a sketch is one of gradients, and likeness=prototypes sends none; leave one out."
            )
        if self.sketch > fed.rows.size:
            raise UcflError(
                f"a sketch of {self.sketch} numbers is longer than the model's {fed.rows.size}; "
                "choose fewer, or 0 to send gradients as they are."
            )

    def start(self, fed: Federation) -> State:
        """The collaboration round: gradients, or prototypes, at θ⁰ decide who learns from whom."""
        return self.begun(fed, self.measured(fed))

    def begun(self, fed: Federation, sent: Mapping[str, Tensor]) -> State:
        """W of what everyone sent, and the streams that go down."""
        weights, apart, numbers = self._likeness(fed, sent)
        m = len(weights)
        every = self.streams == "auto" and m <= EVERY_K
        cap = m if every else min(m, MOST_STREAMS)
        plan = suggested = choose_streams(weights, max_streams=cap, seed=fed.seed)
        if self.streams != "auto":
            count = m if self.streams == "all" else self.streams
            plan = fixed_streams(weights, count, seed=fed.seed)
        diagnosis = Diagnosis(m, apart, suggested.count, suggested.silhouettes[suggested.count])
        if m > 1 and not diagnosis.separates:
            warnings.warn(str(diagnosis), UcflWarning, stacklevel=2)
        mixing = plan.mixing().part(distributed.mine(fed.m, fed.device))
        return {
            "theta": fed.initial(),
            "streams": mixing.streams.to(fed.device),
            "labels": mixing.labels.to(fed.device),
            "weights": weights,
            "silhouettes": torch.tensor(list(suggested.silhouettes.values())),
            "spread": apart,
            "suggested": suggested.count,
            "sent": numbers,
        }

    def measured(self, fed: Federation) -> dict[str, Tensor]:
        """Gradients at θ⁰ (or their sketches) and variances, or class prototypes."""
        if self.likeness == "prototypes":
            return packed([fed.prototypes(theta) for theta in untrained(fed, NETWORKS)])
        found = fed.collaboration_round(fed.initial(), self.variance_batch)
        _warn_of_single_batches(fed, found)
        sent = sketch(found.full, self.sketch, fed.seed) if self.sketch else found.full
        return {"gradients": sent, "variances": found.variances, "batches": found.batches}

    def _likeness(self, fed: Federation, sent: Mapping[str, Tensor]) -> tuple[Tensor, float, int]:
        """W, how far users are apart over their noise (1: by noise), numbers that each sends."""
        sizes = distributed.gathered(fed.sizes)
        if self.likeness == "prototypes":
            prototypes = unpacked(sent)
            pairs = sampled(prototypes).pairs()
            rows = torch.from_numpy(pairs.kernel(sizes.cpu().numpy(), self._width(fed, sizes)))
            numbers = sum(each.numbers for each in prototypes)
            return distributed.agreed(rows.to(fed.device)), 1 + pairs.spread(), numbers
        full, variances, batches = (
            distributed.gathered(sent[name]) for name in ("gradients", "variances", "batches")
        )
        weights = distributed.agreed(collaboration_weights(full, variances, sizes))
        apart = spread(gradient_distances(full), noise_floor(variances, batches))
        return weights, apart, full.shape[1]

    def _width(self, fed: Federation, sizes: Tensor) -> float:
        """h = N / n_k − 1, as eq. 7's (see :func:`kernel`)."""
        batch = fed.variance_batch if self.variance_batch is None else self.variance_batch
        share = batch if batch < 1 else batch / float(sizes.double().mean())
        return max(1 / share - 1, 1.0)

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere, mix."""
        theta = self.models(state)
        return {**state, "theta": self.mixed(fed, state, fed.train(theta, t), theta)}

    def rule(self, fed: Federation, state: State) -> Mixing:
        """As the collaboration round decided."""
        return self.mixing(state).among(fed.present)

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The model of the stream whose rule is nearest to the newcomer's own row of W (eq. 7).

        Its row needs its gradient at θ⁰ beside the users', which are measured again here.
        """
        ours, theirs = self.measured(fed), self._measured_like(arrivals, fed)
        stream = self._nearest(fed, state, self._newcomer_rows(fed, ours, theirs))
        labels = distributed.gathered(self.mixing(state).labels)
        listener = (stream[:, None] == labels).long().argmax(1)
        return Mixing.of_one(listener, fed.sizes) @ self.models(state)

    def joined(
        self,
        fed: Federation,
        state: State,
        ours: Mapping[str, Tensor],
        theirs: Mapping[str, Tensor],
    ) -> State:
        """The new user listens to the stream whose rule is nearest to its own row of W."""
        rows = self._newcomer_rows(fed, ours, theirs)
        count, m = tensor(state, "streams").shape
        stream = self._nearest(fed, state, rows)
        weights = tensor(state, "weights")
        return {
            **state,
            "streams": torch.cat([tensor(state, "streams"), rows.new_zeros(count, 1)], 1),
            "labels": torch.cat([tensor(state, "labels"), stream]),
            "weights": torch.cat(
                [torch.cat([weights, rows.to(weights)]), weights.new_zeros(m + 1, 1)], 1
            ),
        }

    def _measured_like(self, arrivals: Federation, fed: Federation) -> dict[str, Tensor]:
        """What newcomers send, in the bins of the users' numbers."""
        if self.likeness == "prototypes":
            networks = untrained(arrivals, NETWORKS)
            return packed([arrivals.prototypes(theta, like=fed) for theta in networks])
        return self.measured(arrivals)

    def _nearest(self, fed: Federation, state: State, rows: Tensor) -> Tensor:
        """[q]: the stream whose rule is nearest to each row of W."""
        mixing = self.mixing(state)
        streams = distributed.gathered(mixing.streams.T.contiguous()).T
        return torch.cdist(rows.to(streams), streams).argmin(1)

    def _newcomer_rows(
        self, fed: Federation, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
    ) -> Tensor:
        """[q, m]: rows of W for who comes later."""
        sizes = distributed.gathered(fed.sizes)
        if self.likeness == "prototypes":
            everyone, m = sampled(unpacked(ours), others=unpacked(theirs)), len(sizes)
            apart = everyone.of_users(slice(m, None)).pairs_with(everyone.of_users(slice(m)))
            width = self._width(fed, sizes)
            rows = torch.from_numpy(apart.kernel(sizes.cpu().numpy(), width, own=False))
            return rows.to(fed.device)
        between = distances_between(theirs["gradients"], ours["gradients"])
        distances = distributed.gathered(between.T).T
        variances = distributed.gathered(ours["variances"])
        return newcomer_weights(distances, theirs["variances"], variances, sizes)

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A broadcast per stream, one model up per user."""
        return Traffic(down=self.mixing(state).among(fed.present).sent, up=1)

    def start_traffic(self, fed: Federation, state: State) -> Traffic:
        """θ⁰ down; a gradient (or its sketch), or prototypes up; one pass over the data."""
        forward = self.likeness == "prototypes"
        work = NETWORKS * fed.forward_work("train") if forward else fed.work(fed.total(fed.sizes))
        sent = int(state.get("sent", self.sketch or fed.rows.size))  # older states have no "sent"
        return Traffic(down=1, up=sent / fed.rows.size, work=work)

    def describe(self, state: State) -> str:
        """What the collaboration round found, in plain words."""
        silhouettes, suggested = tensor(state, "silhouettes"), int(state["suggested"])
        spread = float(state["spread"])
        users = len(tensor(state, "weights"))
        return str(Diagnosis(users, spread, suggested, float(silhouettes[suggested - 1])))

    def collaboration(self, state: State) -> Collaboration:
        """W, streams and silhouettes of the collaboration round."""
        return Collaboration(
            tensor(state, "weights"),
            tensor(state, "labels"),
            tensor(state, "silhouettes"),
            float(state["spread"]),
        )

    @staticmethod
    def mixing(state: State) -> Mixing:
        """Who learns from whom, as the collaboration round decided."""
        return Mixing(tensor(state, "streams"), tensor(state, "labels"))


def _warn_of_single_batches(fed: Federation, found: Gradients) -> None:
    """Name the users whose variance rests on one batch; without any, a user learns alone."""
    single = torch.nonzero(found.batches < 2)[:, 0].tolist()
    if fed.m == 1 or not single:
        return
    names = ", ".join(fed.users.names[i] for i in single[:3]) + (" …" if len(single) > 3 else "")
    alone = int((found.variances == 0).sum())
    warnings.warn(
        f"{len(single)} of {fed.m} users ({names}) have too little data for two batches of n_k = "
        f"{int(found.batch[single[0]])} examples, so their gradients' variance is a guess from "
        f"one batch{f' (and zero for {alone}: they learn alone)' if alone else ''}; choose "
        "variance_batch at most half of each user's data.",
        UcflWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class ParallelUserCentric(UserCentric):
    """θ_s ← Σ_j c_sj θ_sj, every user training every stream's model (paper, eq. 13).

    Minimises each stream's weighted loss (eq. 4) exactly, for k times the work and the uplink.
    (The text below eq. 13 starts user j from θ_j; the upper bound it describes, and a common
    launch model, need θ_s.)
    """

    name: ClassVar[str] = "parallel-user-centric"
    reference: ClassVar[str] = "paper, sec. V-E, eq. 13"
    cost: ClassVar[str] = "k down, k up, k times the work; once: 1 down, 1 up"
    streams_can_be_chosen: ClassVar[bool] = False
    sharded: ClassVar[bool] = False

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Each stream's model visits every user."""
        mixing, theta = self.mixing(state), self.models(state)
        everyone = torch.zeros_like(mixing.labels)
        fresh = torch.empty_like(theta)
        for s, rule in enumerate(mixing.streams):
            listeners = mixing.labels == s
            launched = theta[listeners][:1].expand(fed.m, -1)
            stream = Mixing(rule[None], everyone).among(fed.present)
            mixed = fed.exchange(stream, fed.train(launched, t), launched)
            fresh[listeners] = mixed[listeners]
        return {**state, "theta": fresh}

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """Every stream's model goes down to all, comes back from all, and is trained by all."""
        count = self.mixing(state).count
        return Traffic(down=count, up=count, work=count)

    def audience(self, state: State) -> None:
        """Everyone trains every stream's model."""
