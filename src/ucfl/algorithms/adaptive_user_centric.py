"""Adaptive user-centric: users try several mixtures of the same models, and keep what serves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ucfl.algorithms.algorithm import Algorithm, State, tensor
from ucfl.collaboration import (
    Collaboration,
    Diagnosis,
    MixedPart,
    Mixing,
    choose_streams,
    gradient_distances,
    noise_floor,
    spread,
)
from ucfl.collaboration.candidates import NAMES, candidate, common_choice, kernel, own_choices
from ucfl.collaboration.streams import MOST_STREAMS
from ucfl.federation import Federation, draws
from ucfl.options import NotNegative, PositiveShare
from ucfl.wireless import Audience, Traffic

#: Rounds in which candidates are tried; close together first, since models part early.
CALIBRATIONS = (3, 6, 10, 15, 25, 40, 60)
#: Equal outcomes in a row after which nothing is tried any more.
STABLE = 3
#: The width that training starts with, and the one whose weights are grouped into streams; n_k of
#: the collaboration round, the same for all federations (a third has that width).
FIRST, PLANNED, VARIANCE_BATCH = "h=4", 2.0, 1 / 3
#: Rounds without a better validation metric after which everyone's layers but the last are
#: averaged on trial, and the length of the trial.
PATIENCE, TRIAL = 10, 30
#: The candidate that needs no message.
LOCAL = NAMES.index("local")


@dataclass(frozen=True)
class AdaptiveUserCentric(Algorithm):
    """θ_i ← Σ_j w_ij θ_j, w the candidate with the lowest validation loss of what it mixes now.

    Candidates come free from one collaboration round: eq. 7's kernel at six widths, FedAvg inside
    the streams of the silhouette's plan, FedAvg, local. In calibration rounds users get everything
    that candidates are mixed from and report their validation losses; a user that another stream
    serves better moves there. Once training no longer gains, all layers but the last are averaged
    over everyone on trial, while users keep the best models: it stays if it gains.

    ``choice``: one for all, or everyone its own. ``streams``: ``all`` (a kernel has a row for each
    user), ``plan`` (one for each stream: fewer models to send) or ``auto`` (``plan`` where users
    fall into groups, else ``all``). ``voters``: the share of users that take part in a calibration.
    ``doubt``: how many standard errors a gain must be to change a choice.
    """

    choice: Literal["common", "own"] = "common"
    streams: Literal["all", "plan", "auto"] = "auto"
    voters: PositiveShare = 1.0
    doubt: NotNegative = 2.0

    name: ClassVar[str] = "adaptive-user-centric"
    reference: ClassVar[str] = "beyond the paper, docs/algorithms"
    cost: ClassVar[str] = "k down, 1 up; up to m down in 7 rounds; once: 1 down, 1 up"
    tested_model: ClassVar[str] = "aggregated"
    sharded: ClassVar[bool] = False

    def start(self, fed: Federation) -> State:
        """The collaboration round: distances, the noise floor, a plan of streams."""
        theta = fed.initial()
        found = fed.collaboration_round(theta, VARIANCE_BATCH)
        distances = gradient_distances(found.full).double()
        floor = noise_floor(found.variances, found.batches)
        apart = spread(distances, floor)
        known = floor[floor.isfinite()]
        floor = floor.nan_to_num(float(known.median()) if len(known) else 0.0)
        planned = kernel(distances, floor, fed.sizes, PLANNED)
        plan = choose_streams(planned, max_streams=min(fed.m, MOST_STREAMS), seed=fed.seed)
        diagnosis = Diagnosis(fed.m, apart, plan.count, plan.silhouettes[plan.count])
        state: State = {
            "theta": theta,
            "distances": distances,
            "floor": floor,
            "streams": torch.from_numpy(plan.labels).to(fed.device),
            "choices": torch.full((fed.m,), NAMES.index(FIRST), device=fed.device),
            "together": self.streams == "plan" or (self.streams == "auto" and diagnosis.grouped),
            "stable": 0,
            "phase": "apart",
            "best": -math.inf,
            "since": 0,
            "best_theta": theta,
            "down": 0.0,
            "head": 0.0,
            "evaluated": 0.0,
            "spread": apart,
            "silhouettes": torch.tensor(list(plan.silhouettes.values())),
        }
        state = {**state, **self._settled(fed, state)}
        return {**state, "down": float(self.mixing(state).sent)}

    def round(self, fed: Federation, state: State, t: int) -> State:
        """Train everywhere; try the candidates where it is time to; mix."""
        local = fed.train(tensor(state, "theta"), t)
        trying = fed.m > 1 and t in CALIBRATIONS and int(state["stable"]) < STABLE
        state = {**state, "evaluated": 0.0, "head": 0.0}
        if trying:
            state = self._calibrated(fed, state, local, t)
            mixing, sent = self._sent(fed, state)
        else:
            mixing = self.mixing(state).among(fed.present)
            sent = float(mixing.sent)
        if state["phase"] in ("trial", "shared"):
            average = Mixing.average(fed.sizes).among(fed.present)
            layered = Mixing.by_part({fed.part("body"): average, fed.part("head"): mixing})
            share = fed.part("head").share
            theta, down = layered @ local, layered.sent + share * (sent - mixing.sent)
            state = {**state, "head": share}
        elif bool((tensor(state, "choices") == LOCAL).all()) and not trying:
            theta, down = local, 0.0
        else:
            theta, down = mixing @ local, sent
        return self._watched(fed, {**state, "theta": theta, "down": down}, t)

    def _watched(self, fed: Federation, state: State, t: int) -> State:
        """From apart to trial when nothing is gained any more; from there to shared, or back.

        Without validation data nothing says what is gained, and nothing is tried.
        """
        calibrated = int(state["stable"]) >= STABLE or t >= CALIBRATIONS[-1]
        if state["phase"] not in ("apart", "trial") or not (~fed.part("head")).count:
            return state
        theta = tensor(state, "theta")
        now = float(fed.metric(theta, "validation").nanmean())
        if math.isnan(now):
            return state
        now = now if fed.objective.judge.more_is_better else -now
        state = {**state, "evaluated": float(state["evaluated"]) + 1}
        since, trial = int(state["since"]) + 1, state["phase"] == "trial"
        if now > float(state["best"]):
            phase = "shared" if trial else "apart"
            return {**state, "phase": phase, "best": now, "since": 0, "best_theta": theta}
        if trial and since == TRIAL:
            return {**state, "phase": "settled", "theta": tensor(state, "best_theta")}
        if not trial and since >= PATIENCE and calibrated:
            return {**state, "phase": "trial", "since": 0}
        return {**state, "since": since}

    def models(self, state: State) -> Tensor:
        """Θ; during a trial, the best so far."""
        return tensor(state, "best_theta" if state["phase"] == "trial" else "theta")

    def traffic(self, fed: Federation, state: State) -> Traffic:
        """A broadcast per stream; in a calibration what candidates need, and forward passes."""
        down = float(state["down"])
        work = 1 + float(state["evaluated"]) * fed.forward_work("validation")
        return Traffic(down=down, up=1 if down else 0, work=work)

    def audience(self, state: State) -> Audience | None:
        """A stream for everyone's body, and those of the heads, where the body is shared."""
        whole, share = super().audience(state), float(state.get("head", 0.0))
        if whole is None or whole.labels is None or not share:
            return whole
        everyone = np.zeros_like(whole.labels)
        return Audience(((1 - share, everyone), (share, whole.labels)))

    def start_traffic(self, fed: Federation, state: State) -> Traffic:
        """As the paper's method: θ⁰ down, a gradient up, one pass over the data."""
        return Traffic(down=1, up=1, work=fed.work(fed.total(fed.sizes)))

    def describe(self, state: State) -> str:
        """How many streams the plan has."""
        streams = int(tensor(state, "streams").max()) + 1
        return f"candidates are {', '.join(NAMES)}; the plan has k = {streams} streams."

    def collaboration(self, state: State) -> Collaboration | None:
        """The mixtures in use, and the plan of streams that they are made from."""
        if "silhouettes" not in state:  # a run of version 0.1
            return None
        mixing, share = self.mixing(state), float(state.get("head", 0.0))
        head = MixedPart("head", share, mixing.count, mixing.weights, mixing.labels)
        return Collaboration(
            mixing.weights,
            tensor(state, "streams"),
            tensor(state, "silhouettes"),
            float(state["spread"]),
            (MixedPart("body", 1 - share, streams=1), head) if share else (),
        )

    @staticmethod
    def mixing(state: State) -> Mixing:
        """What everyone has chosen."""
        return Mixing(tensor(state, "rules"), tensor(state, "labels"))

    def _rows(self, fed: Federation, state: State, name: str) -> Tensor:
        """[m, m]: everyone's row of a candidate."""
        distances, floor, streams = (
            tensor(state, part) for part in ("distances", "floor", "streams")
        )
        together = bool(state["together"])
        return candidate(name, distances, floor, fed.sizes, streams, together=together)

    def _settled(self, fed: Federation, state: State) -> State:
        """Everyone's row of the candidate that it has chosen; equal rows are one stream."""
        choices = tensor(state, "choices")
        chosen = torch.zeros(fed.m, fed.m, dtype=torch.float64, device=fed.device)
        for number in choices.unique().tolist():
            its = choices == number
            chosen[its] = self._rows(fed, state, NAMES[number])[its]
        rules, labels = chosen.unique(dim=0, return_inverse=True)
        return {"rules": rules, "labels": labels}

    def _sent(self, fed: Federation, state: State) -> tuple[Mixing, float]:
        """What a calibration sends: all candidates' mixtures, or the local models if fewer.

        Beside the mixing, how many models that are: those are heard by who tries them, too.
        """
        mixing = self.mixing(state)
        others = [self._rows(fed, state, name) for name in NAMES if name != NAMES[LOCAL]]
        rules, labels = torch.cat([*others, mixing.weights]).unique(dim=0, return_inverse=True)
        if len(rules) < fed.m:
            found = Mixing(rules, labels[-fed.m :]).among(fed.present)
            return found, float(len(rules) if found.silent is None else (~found.silent).sum())
        found = Mixing(mixing.weights, torch.arange(fed.m, device=fed.device)).among(fed.present)
        return found, float(found.sent)

    def _calibrated(self, fed: Federation, state: State, local: Tensor, t: int) -> State:
        """The state after everyone has tried everything on the same local models."""
        streams, choices = tensor(state, "streams"), tensor(state, "choices")
        groups = Mixing.within(fed.sizes, streams)
        losses = self._tried(fed, local, [row.expand(fed.m, -1) for row in groups.streams], t)
        nobody = torch.arange(fed.m, device=fed.device)  # to follow
        moved = own_choices(losses, streams, nobody, self.doubt).unique(return_inverse=True)[1]
        state = {**state, "streams": moved}
        ways = [self._rows(fed, state, name) for name in NAMES]
        losses = self._tried(fed, local, ways, t)
        if self.choice == "own":
            fresh = own_choices(losses, choices, moved, self.doubt, self._asked(fed, t))
        else:
            best = common_choice(losses.nanmean(2), int(choices[0]), self.doubt)
            fresh = torch.full_like(choices, best)
        same = torch.equal(fresh, choices) and torch.equal(moved, streams)
        state = {
            **state,
            "choices": fresh,
            "stable": int(state["stable"]) + 1 if same else 0,
            "evaluated": (len(NAMES) + groups.count) * self.voters,
        }
        return {**state, **self._settled(fed, state)}

    def _tried(self, fed: Federation, local: Tensor, ways: list[Tensor], t: int) -> Tensor:
        """[ways, m, examples]: validation losses with each way [m, m] to mix, of those who vote.

        A mixture of absent users alone cannot be made now: its loss is infinite.
        """
        everyone = torch.arange(fed.m, device=fed.device)
        found = []
        for way in (Mixing(way, everyone).among(fed.present) for way in ways):
            losses = fed.example_losses(way.weights.to(local.dtype) @ local).double()
            if way.silent is not None:
                unmade = way.silent[:, None] & ~losses.isnan()
                losses = losses.masked_fill(unmade, torch.inf)
            found.append(losses)
        losses = torch.stack(found)
        losses[:, ~self._asked(fed, t)] = torch.nan
        return losses

    def _asked(self, fed: Federation, t: int) -> Tensor:
        """[m]: who votes in round t."""
        present = fed.present
        if present is None:
            present = torch.ones(fed.m, dtype=torch.bool, device=fed.device)
        if self.voters == 1:
            return present
        ranks = draws.uniform(fed.seed, t, fed.users.ids, -9).argsort().argsort()
        return present & (ranks < max(1, math.ceil(self.voters * fed.m)))
