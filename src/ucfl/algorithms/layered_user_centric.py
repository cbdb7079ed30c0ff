"""Layered user-centric learning: each layer is shared by those for whom it means the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ucfl import distributed
from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.algorithms.sampled import (
    NETWORKS,
    feature_length,
    noised,
    packed,
    sampled,
    sketched,
    unpacked,
    untrained,
)
from ucfl.collaboration import Collaboration, MixedPart, Mixing, MixingByPart
from ucfl.collaboration.groups import LEVEL, Groups, find_groups
from ucfl.collaboration.priors import concentration, log_priors, shifts
from ucfl.collaboration.prototypes import ClassMeans, input_groups, nearest_groups
from ucfl.errors import UcflError
from ucfl.federation import Federation, Pull
from ucfl.options import NotNegative
from ucfl.parts import Part
from ucfl.wireless import Audience, Traffic

#: What users' differences inside a group must be, in units of the noise of what their own data
#: says of them, for models of their own beside the common one: from here on, a user's own data
#: says more of it than it errs.
OWN_SPREAD = 1.0


@dataclass(frozen=True)
class LayeredUserCentric(Algorithm):
    """Θ_body ← W_inputs Θ_body, Θ_head ← W_groups Θ_head, and everyone's own prior.

    One forward pass at θ⁰ gives each user's class prototypes. They say which users mean the same
    by their labels (P(x | y): ``head`` averaged in these groups), which of these groups have the
    same inputs under other names (P(x): ``body`` averaged over those), and with the counts which
    labels a user has (P(y): ``prior``, log π_i / q added to the outputs, as a term of the last
    layer's bias that stays with its user). Groups that share a body start from heads in which
    equal classes have equal weights, whatever they are called (``renamed``): else their first
    gradients would pull the body apart. Where users inside a group still differ by more than
    the noise of what their data says of them, everyone trains a model of its own beside the common
    one (``personal_model``: min_v f_i(v) + λ/2 ‖v − θ_i‖², λ is ``strength``).

    ``groups``: ``found``, or ``told`` as the oracle's are. ``networks``: of how many untrained
    networks the prototypes are, θ⁰ and others that everyone draws by the seed. ``sketch``: a
    network's features are sent in so many numbers (0: all). ``noise``: the standard deviation of
    noise that users add to what they send, in units of one example's largest part in it (0: none).
    """

    body: Literal["inputs", "groups", "all"] = "inputs"
    head: Literal["groups", "all"] = "groups"
    prior: bool = True
    renamed: bool = True
    personal_model: Literal["auto", "always", "never"] = "auto"
    strength: NotNegative = 0.1
    groups: Literal["found", "told"] = "found"
    networks: Annotated[int, Field(ge=1, le=100)] = NETWORKS
    sketch: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    noise: NotNegative = 0.0

    name: ClassVar[str] = "layered-user-centric"
    reference: ClassVar[str] = "beyond the paper, docs/algorithms"
    cost: ClassVar[str] = "1 to k down, 1 up; once: 1 down, prototypes up"
    sharded: ClassVar[bool] = True
    deployable: ClassVar[bool] = True
    of_users: ClassVar[frozenset[str]] = frozenset({"theta", "prior", "personal"})
    tested_model: ClassVar[str] = "personalised"

    def check(self, fed: Federation) -> None:
        """Told groups are known to somebody; noise is for what an example's part is known of."""
        if self.groups == "told" and fed.groups is None:
            raise UcflError(
                "groups=told needs the users' true groups, and these users have none; leave it out."
            )
        inputs = fed.users.train.inputs.dtype
        numbers = inputs.is_floating_point or inputs == torch.uint8
        if self.noise and not (fed.objective.name == "classification" and numbers):
            raise UcflError(
                "noise= is for classes of inputs in numbers: what one example adds at most is not "
                "known of sequences, tokens or regression; leave it out."
            )

    def start(self, fed: Federation) -> State:
        """The collaboration round: prototypes decide who shares which layer with whom."""
        return self.begun(fed, self.measured(fed))

    def begun(self, fed: Federation, sent: Mapping[str, Tensor]) -> State:
        """Who shares which layer with whom, by everyone's prototypes."""
        sample = self._sample(sent)
        numbers = sum(each.numbers for each in unpacked(sent))
        found = self._groups(fed, sample)
        alike, names = input_groups(sample, found.labels)
        nobody = np.zeros_like(found.labels)
        own = found.labels if self.head == "groups" else nobody
        spread = found.spread if self.head == "groups" else sample.pairs().spread(own)
        head = _agreed(fed, own)
        body = _agreed(fed, {"inputs": alike, "groups": found.labels, "all": nobody}[self.body])
        here = distributed.mine(fed.m, fed.device)
        theta = fed.initial()
        if self.renamed and self.head == "groups" and _classifies(fed):
            theta = _renamed(fed, theta, _agreed(fed, names)[here])
        state: State = {
            "theta": theta,
            "groups": head[here],
            "inputs": body[here],
            "weights": _weights(distributed.gathered(fed.sizes), head),
            "head": fed.part("head").share,
            "spread": float(_agreed(fed, np.array([spread]))),
            "p_value": found.p_value,
            "sent": numbers,
        }
        if self.prior and _shifts_outputs(fed):
            prior = _agreed(fed, log_priors(sample.counts, head.cpu().numpy()))[here]
            state = {**state, "prior": prior.to(theta)}
            state = {**state, "theta": self._with_prior(fed, state, theta)}
        differ = float(state["spread"]) > OWN_SPREAD
        if self.personal_model == "always" or (self.personal_model == "auto" and differ):
            state = {**state, "personal": tensor(state, "theta")}
        return state

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere; mix part by part, but for everyone's own prior."""
        theta = tensor(state, "theta")
        had = self._with_prior(fed, state, theta, -1)
        common = self._with_prior(fed, state, fed.train(theta, t, self._undecayed(fed, state)), -1)
        mixed = self._with_prior(fed, state, self.mixed(fed, state, common, had))
        state = {**state, "theta": mixed}
        if "personal" not in state:
            return state
        near = Pull(self.strength, theta, self._undecayed(fed, state).direction)
        return {**state, "personal": fed.train(tensor(state, "personal"), t, near)}

    def rule(self, fed: Federation, state: State) -> MixingByPart:
        """Bodies by inputs, heads by meanings."""
        return self.mixing(fed, state)

    def _undecayed(self, fed: Federation, state: State) -> Pull:
        """What takes weight decay off the priors, which are no weights: −λ log π_i / q.

        (AdamW's decay is no part of the gradient; there a prior decays with the rest.)
        """
        training, bias = fed.training, fed.rows.output_bias(fed.users.classes)
        if not training.weight_decay or training.optimiser == "adamw" or "prior" not in state:
            return Pull()
        assert bias is not None
        nothing = torch.zeros(fed.m, fed.rows.size, dtype=fed.rows.dtype, device=fed.device)
        prior = tensor(state, "prior")
        return Pull(direction=_added_to(nothing, bias, -training.weight_decay * prior))

    def models(self, state: State) -> Tensor:
        """Models of users' own, where they have any; else the mixed ones with their priors."""
        return tensor(state, "personal" if "personal" in state else "theta")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The model of the group whose prototypes are nearest, with the newcomer's own prior.

        Prototypes of the users are measured again here.
        """
        first, own = self._placed(fed, state, self.measured(fed), self._sent(arrivals, fed))
        common = self._with_prior(fed, state, tensor(state, "theta"), -1)
        theta = Mixing.of_one(torch.tensor(first, device=fed.device), fed.sizes) @ common
        bias = fed.rows.output_bias(fed.users.classes)
        if own is None or bias is None:
            return theta
        return _added_to(theta, bias, own.to(theta))

    def joined(
        self,
        fed: Federation,
        state: State,
        ours: Mapping[str, Tensor],
        theirs: Mapping[str, Tensor],
    ) -> State:
        """The new user shares body and head with the group whose prototypes are nearest."""
        first, own = self._placed(fed, state, ours, theirs)
        like = torch.tensor(first, device=fed.device)
        found = {name: tensor(state, name) for name in ("groups", "inputs")}
        fresh = {name: torch.cat([labels, labels[like]]) for name, labels in found.items()}
        weights = tensor(state, "weights")
        rows = torch.cat([weights, weights[like]])
        state = {**state, **fresh, "weights": torch.cat([rows, rows.new_zeros(len(rows), 1)], 1)}
        if own is None:
            return state
        prior = tensor(state, "prior")
        return {**state, "prior": torch.cat([prior, own.to(prior)])}

    def _placed(
        self,
        fed: Federation,
        state: State,
        ours: Mapping[str, Tensor],
        theirs: Mapping[str, Tensor],
    ) -> tuple[list[int], Tensor | None]:
        """For each newcomer, a user of the group with the nearest prototypes, and its own prior."""
        everyone = self._sample(ours, theirs)
        groups, inputs = (distributed.gathered(tensor(state, n)) for n in ("groups", "inputs"))
        m = len(groups)
        sample, new = everyone.of_users(slice(m)), everyone.of_users(slice(m, None))
        both = torch.stack([groups, inputs], 1).unique(dim=0, return_inverse=True)[1].cpu().numpy()
        nearest = nearest_groups(new.pairs_with(sample), both)
        first = [int(np.flatnonzero(both == one)[0]) for one in nearest]
        if "prior" not in state:
            return first, None
        labels = groups.cpu().numpy()
        counts = [sample.counts[labels == labels[one]] for one in first]
        own = [shifts(n[None], *concentration(c)) for n, c in zip(new.counts, counts, strict=True)]
        return first, torch.from_numpy(np.concatenate(own))

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A broadcast per body and per head; models of users' own are as much work again."""
        mixing = self.mixing(fed, state)
        work = 2 if "personal" in state else 1
        return Traffic(down=mixing.sent, up=mixing.uploaded, work=work)

    def start_traffic(self, fed: Federation, state: State) -> Traffic:
        """θ⁰ down, prototypes and counts up, forward passes; then each group's q and a down."""
        size, down = fed.rows.size, 1.0
        if "prior" in state:
            groups = len(distributed.gathered(tensor(state, "groups")).unique())
            down += groups * (fed.users.classes + 1) / size
        work = self.networks * fed.forward_work("train")
        return Traffic(down=down, up=int(state["sent"]) / size, work=work)

    def audience(self, state: State) -> Audience:
        """Streams of bodies, and of heads."""
        share = float(state["head"])
        parts = (1 - share, "inputs"), (share, "groups")
        return Audience(
            tuple((size, tensor(state, name).cpu().numpy()) for size, name in parts if size)
        )

    def collaboration(self, state: State) -> Collaboration:
        """W of the heads, its groups, and how each part is shared."""
        weights, groups = tensor(state, "weights"), distributed.gathered(tensor(state, "groups"))
        share = float(state["head"])
        inputs = distributed.gathered(tensor(state, "inputs"))
        body = MixedPart("body", 1 - share, len(inputs.unique()), labels=inputs)
        head = MixedPart("head", share, len(groups.unique()), weights, groups)
        found = Collaboration.of(weights, groups)
        parts = (body, head) if share < 1 else (head,)
        # No spread: readers take it for that of gradients.
        return Collaboration(weights, groups, found.silhouettes, parts=parts)

    def describe(self, state: State) -> str:
        """What was found, and what follows from it."""
        groups, bodies = (
            len(distributed.gathered(tensor(state, name)).unique()) for name in ("groups", "inputs")
        )
        p = float(state["p_value"])
        how = "" if self.groups == "told" else f" (p = {p:.2g}; users are split up to {LEVEL:g})"
        said = (
            f"Users share {groups} heads by what their labels mean{how}, and {bodies} "
            f"{'bodies' if bodies > 1 else 'body'} by their inputs."
            if max(groups, bodies) > 1
            else f"Users have no groups{how}: one body and one head for all."
        )
        if "prior" in state and bool(distributed.gathered(tensor(state, "prior")).any()):
            said += " They have other labels each: everyone keeps its own prior."
        if "personal" in state:
            differ = f"{float(state['spread']):.1f} times as much as noise would make them"
            said += (
                f" Everyone has a model of its own beside: inside groups, users differ {differ}."
            )
        return said

    def mixing(self, fed: Federation, state: State) -> MixingByPart:
        """Bodies over users with the same inputs, heads over users with the same meanings."""
        groups, inputs = tensor(state, "groups"), tensor(state, "inputs")
        heads = bodies = Mixing.within(fed.sizes, groups)
        # All processes' users decide: each of them must make the same products.
        if not torch.equal(distributed.gathered(groups), distributed.gathered(inputs)):
            bodies = Mixing.within(fed.sizes, inputs)
        parts = {fed.part("body"): bodies} if (~fed.part("head")).count else {}
        return Mixing.by_part({**parts, fed.part("head"): heads}).among(fed.present)

    def _groups(self, fed: Federation, sample: ClassMeans) -> Groups:
        """Found, or told."""
        if self.groups == "told":
            assert fed.groups is not None
            told = distributed.gathered(fed.groups).cpu().numpy()
            labels = np.unique(told, return_inverse=True)[1].astype(np.int64)
            return Groups(labels, 0.0, sample.pairs().spread(labels))
        return find_groups(sample, fed.seed)

    def measured(self, fed: Federation) -> dict[str, Tensor]:
        """Class prototypes by every network."""
        return self._sent(fed, fed)

    def _sample(
        self, sent: Mapping[str, Tensor], others: Mapping[str, Tensor] | None = None
    ) -> ClassMeans:
        """What users sent, with newcomers behind them, in common units."""
        added = [float(sent[name][0]) for name in sorted(sent) if name.startswith("added/")]
        return sampled(unpacked(sent), added=added, others=unpacked(others or {}))

    def _sent(self, fed: Federation, like: Federation) -> dict[str, Tensor]:
        """Prototypes by every network, and the variance of the noise on their sums."""
        if fed.server is not None and not fed.users.classes:
            raise UcflError(
                "bins of numbers are agreed on by all users together, which users on machines of "
                "their own cannot do yet; choose user-centric, or targets that are classes."
            )
        found, added = [], {}
        for number, theta in enumerate(untrained(fed, self.networks)):
            length = feature_length(fed, theta[0]) if self.noise else None
            each = fed.prototypes(theta, length, like)
            if length is not None:
                each = noised(each, fed, self.noise, length, number)
                variance = each.means.shape[2] * (self.noise * length) ** 2
                added[f"added/{number:03d}"] = each.counts.new_full((fed.m,), variance)
            found.append(sketched(each, self.sketch, fed.seed) if self.sketch else each)
        return packed(found) | added

    def _with_prior(self, fed: Federation, state: State, theta: Tensor, sign: int = 1) -> Tensor:
        """Rows with their users' priors added to the outputs' bias, or taken away from it."""
        bias = fed.rows.output_bias(fed.users.classes)
        if "prior" not in state or bias is None:
            return theta
        return _added_to(theta, bias, sign * tensor(state, "prior"))


def _classifies(fed: Federation) -> bool:
    """Whether outputs are scores of classes; what others mean is not known."""
    return fed.objective.name in ("classification", "next-token")


def _shifts_outputs(fed: Federation) -> bool:
    """Whether the last layer's bias is added to the outputs, class by class: tried at θ⁰."""
    bias = fed.rows.output_bias(fed.users.classes)
    if bias is None or not _classifies(fed):
        return False
    by = torch.arange(fed.users.classes, device=fed.device).to(fed.rows.dtype)
    row = fed.initial()[:1]
    before, after = (_scores(fed, one) for one in (row, _added_to(row, bias, by[None])))
    return bool(torch.allclose(after - before, (by - by.mean()).expand_as(before), atol=1e-4))


def _renamed(fed: Federation, theta: Tensor, names: Tensor) -> Tensor:
    """Rows whose output names[i, c] is what output c was; as they are where that cannot be."""
    fresh = fed.rows.outputs_renamed(theta, names)
    turned = torch.arange(fed.users.classes, device=fed.device).roll(1)
    row = fed.initial()[:1]
    before, after = (
        _scores(fed, one) for one in (row, fed.rows.outputs_renamed(row, turned[None]))
    )
    return fresh if torch.allclose(after[..., turned], before, atol=1e-5) else theta


def _scores(fed: Federation, rows: Tensor) -> Tensor:
    """[..., C]: what a row's model says of one example, but for what is common to all classes."""
    with torch.no_grad():
        outputs = fed.model.outputs(rows[0], fed.users.train.inputs[0, :1])
    return outputs - outputs.mean(-1, keepdim=True)


def _agreed(fed: Federation, found: NDArray[Any]) -> Tensor:
    """What all processes have computed alike, as the first one has it."""
    return distributed.agreed(torch.from_numpy(np.ascontiguousarray(found)).to(fed.device))


def _weights(sizes: Tensor, labels: Tensor) -> Tensor:
    """W [m, m] of averages inside groups."""
    same = (labels[:, None] == labels).double() * sizes.double()
    return same / same.sum(1, keepdim=True)


def _added_to(theta: Tensor, part: Part, values: Tensor) -> Tensor:
    """Θ with values [m, columns] added to a part."""
    fresh = theta.clone()
    (columns,) = part.ranges
    fresh[:, slice(*columns)] += values
    return fresh
