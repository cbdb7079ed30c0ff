"""Layered user-centric learning: each layer is shared by those for whom it means the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ucfl import distributed
from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.algorithms.sampled import NETWORKS, sampled, untrained
from ucfl.collaboration import Collaboration, MixedPart, Mixing, MixingByPart, sketch
from ucfl.collaboration.groups import Groups, find_groups
from ucfl.collaboration.priors import concentration, log_priors, shifts
from ucfl.collaboration.prototypes import ClassMeans, input_groups, nearest_groups
from ucfl.errors import UcflError
from ucfl.federation import Federation, Prototypes, Pull, draws
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
    tested_model: ClassVar[str] = "personalised"

    def check(self, fed: Federation) -> None:
        """Where the groups are to be told, somebody knows them."""
        if self.groups == "told" and fed.groups is None:
            raise UcflError(
                "groups=told needs the users' true groups, and these users have none; leave it out."
            )

    def start(self, fed: Federation) -> State:
        """The collaboration round: prototypes decide who shares which layer with whom."""
        sample, numbers = self._sample(fed)
        found = self._groups(fed, sample)
        nobody = np.zeros_like(found.labels)
        head = found.labels if self.head == "groups" else nobody
        body = found.labels if self.body == "groups" else nobody
        alike, names = input_groups(sample, found.labels)
        if self.body == "inputs":
            body = alike
        here = distributed.mine(fed.m, fed.device)
        groups, inputs = (torch.from_numpy(part[here]).to(fed.device) for part in (head, body))
        theta = fed.initial()
        if self.renamed and self.head == "groups" and _classifies(fed):
            theta = fed.rows.outputs_renamed(theta, torch.from_numpy(names[here]).to(fed.device))
        everyone = distributed.gathered(fed.sizes)
        asked, differ = self.personal_model, found.spread > OWN_SPREAD
        state: State = {
            "theta": theta,
            "groups": groups,
            "inputs": inputs,
            "weights": _weights(everyone, torch.from_numpy(head).to(fed.device)),
            "head": fed.part("head").share,
            "spread": found.spread,
            "p_value": found.p_value,
            "sent": numbers,
        }
        if self.prior and output_bias(fed) is not None:
            prior = torch.from_numpy(log_priors(sample.counts, found.labels)[here])
            state = {**state, "prior": prior.to(theta)}
            state = {**state, "theta": self._with_prior(fed, state, theta)}
        if asked == "always" or (asked == "auto" and differ):
            state = {**state, "personal": tensor(state, "theta")}
        return state

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere; mix part by part, but for everyone's own prior."""
        theta = tensor(state, "theta")
        common = self._with_prior(fed, state, fed.train(theta, t), -1)
        mixed = self._with_prior(fed, state, self.mixing(fed, state) @ common)
        state = {**state, "theta": mixed}
        if "personal" not in state:
            return state
        near = Pull(self.strength, towards=theta)
        return {**state, "personal": fed.train(tensor(state, "personal"), t, near)}

    def models(self, state: State) -> Tensor:
        """Models of users' own, where they have any; else the mixed ones with their priors."""
        return tensor(state, "personal" if "personal" in state else "theta")

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor:
        """The model of the group whose prototypes are nearest, with the newcomer's own prior.

        Prototypes of the users are measured again here.
        """
        new, sample = self._sample(arrivals, alone=True)[0], self._sample(fed)[0]
        labels = distributed.gathered(tensor(state, "groups")).cpu().numpy()
        nearest = nearest_groups(new.pairs_with(sample), labels)
        first = [int(np.flatnonzero(labels == group)[0]) for group in nearest]
        common = self._with_prior(fed, state, tensor(state, "theta"), -1)
        theta = Mixing.of_one(torch.tensor(first, device=fed.device), fed.sizes) @ common
        bias = output_bias(fed)
        if "prior" not in state or bias is None:
            return theta
        counts = [sample.counts[labels == group] for group in nearest]
        own = [shifts(n[None], *concentration(c)) for n, c in zip(new.counts, counts, strict=True)]
        return _added_to(theta, bias, torch.from_numpy(np.concatenate(own)).to(theta))

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
        heard = (
            (size, np.unique(tensor(state, name).cpu().numpy(), return_inverse=True)[1])
            for size, name in parts
            if size
        )
        return Audience(tuple((size, labels.astype(np.int64)) for size, labels in heard))

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
        p, spread = float(state["p_value"]), float(state["spread"])
        chance = "none of the drawn populations" if p <= 0.01 else f"{p:.0%} of them"
        said = (
            f"Users fall into {groups} groups by what their labels mean, and {bodies} by their "
            f"inputs (without groups, {chance} would look like it)."
            if groups > 1
            else "Users have no groups, or none that could be told from chance."
        )
        if "prior" in state and bool(tensor(state, "prior").any()):
            said += " They have other labels each: everyone keeps its own prior."
        if "personal" in state:
            said += (
                f" Inside a group they differ {spread:.1f} times as much as noise: everyone has a "
                "model of its own beside the common one."
            )
        return said

    def mixing(self, fed: Federation, state: State) -> MixingByPart:
        """Bodies over users with the same inputs, heads over users with the same meanings."""
        groups, inputs = tensor(state, "groups"), tensor(state, "inputs")
        heads = Mixing.within(fed.sizes, groups)
        bodies = heads if torch.equal(groups, inputs) else Mixing.within(fed.sizes, inputs)
        parts = {fed.part("body"): bodies} if (~fed.part("head")).count else {}
        return Mixing.by_part({**parts, fed.part("head"): heads}).among(fed.present)

    def _groups(self, fed: Federation, sample: ClassMeans) -> Groups:
        """Found, or told."""
        if self.groups == "told":
            assert fed.groups is not None
            told = distributed.gathered(fed.groups).cpu().numpy()
            labels = np.unique(told, return_inverse=True)[1].astype(np.int64)
            return Groups(labels, 0.0, sample.pairs().spread(labels))
        found = find_groups(sample, fed.seed)
        agreed = distributed.agreed(torch.from_numpy(found.labels).to(fed.device))
        return Groups(agreed.cpu().numpy(), found.p_value, found.spread)

    def _sample(self, fed: Federation, *, alone: bool = False) -> tuple[ClassMeans, int]:
        """What users send, all processes' unless ``alone``, and how many numbers each sends."""
        found, added = [], []
        for number, theta in enumerate(untrained(fed, self.networks)):
            length = feature_length(fed, theta[0]) if self.noise else None
            each = fed.prototypes(theta, length)
            if length is not None:
                each = noised(each, fed, self.noise, length, number)
                added.append(each.means.shape[2] * (self.noise * length) ** 2)
            found.append(sketched(each, self.sketch, fed.seed) if self.sketch else each)
        return sampled(found, added=added, alone=alone), sum(each.numbers for each in found)

    def _with_prior(self, fed: Federation, state: State, theta: Tensor, sign: int = 1) -> Tensor:
        """Rows with their users' priors added to the outputs' bias, or taken away from it."""
        bias = output_bias(fed)
        if "prior" not in state or bias is None:
            return theta
        return _added_to(theta, bias, sign * tensor(state, "prior"))


def output_bias(fed: Federation) -> Part | None:
    """The columns that shift a classifier's outputs, class by class, if there are any."""
    return fed.rows.output_bias(fed.users.classes) if _classifies(fed) else None


def _classifies(fed: Federation) -> bool:
    """Whether outputs are scores of classes; what others mean is not known."""
    return fed.objective.name in ("classification", "next-token")


def sketched(found: Prototypes, size: int, seed: int) -> Prototypes:
    """Prototypes whose features are sent in ``size`` numbers (:func:`sketch`)."""
    m, classes, features = found.means.shape
    if size >= features:
        raise UcflError(
            f"a sketch of {size} numbers is no shorter than the {features} features; choose fewer, "
            "or 0 to send them as they are."
        )
    means = sketch(found.means.flatten(0, 1), size, seed).view(m, classes, size)
    return Prototypes(means, found.variances, found.counts)


def feature_length(fed: Federation, row: Tensor) -> float:
    """A length that no user's data decides: the median one of 256 random inputs' features."""
    shape = 256, *fed.users.input_shape
    places = torch.arange(int(np.prod(shape)), device=fed.device)
    inputs = draws.uniform(fed.seed, 0, places, -7).view(shape).to(fed.rows.dtype)
    with torch.no_grad():
        features = fed.model.features(row, inputs)
    return float(features.flatten(0, -2).norm(dim=1).median())


def noised(
    found: Prototypes, fed: Federation, multiplier: float, length: float, number: int = 0
) -> Prototypes:
    """Sums, counts and squares with Gaussian noise of ``multiplier`` times an example's part.

    An example is in one class, with 1 in its count, at most ``length`` in its sum and its square in
    the sum of squares. The draws depend on (seed, user, ``number`` of the network) alone, those of
    counts on (seed, user).
    """
    m, classes, features = found.means.shape

    def normal(width: int, key: int) -> Tensor:
        each = [np.random.default_rng([fed.seed, int(i), key]) for i in fed.users.ids]
        return torch.from_numpy(np.stack([rng.standard_normal(width) for rng in each])).to(
            found.means
        )

    parts = (
        normal(classes, 0),
        *normal(classes * (features + 1), 1 + number).split([classes * features, classes], dim=1),
    )
    counts = found.counts + multiplier * parts[0]
    sums = found.means * found.counts[..., None]
    sums = sums + multiplier * length * parts[1].view(m, classes, features)
    squares = found.variances * (found.counts - 1).clamp(min=0)
    squares = squares + multiplier * length**2 * parts[2]
    # Counts of noise alone tell nothing.
    real = counts > 2 * multiplier
    n = torch.where(real, counts, 0).round()
    means = torch.where(real[..., None], sums / n.clamp(min=1)[..., None], 0)
    variances = torch.where(n > 1, squares.clamp(min=0) / (n - 1).clamp(min=1), 0)
    return Prototypes(means, variances, n)


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
