"""A user on a machine of its own: a federation of one, which answers the server's questions.

It runs the same algorithm as a simulation does. A round is evaluated twice: once to find out what
is sent, and again with what came back, where its training is remembered.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from ucfl import algorithms
from ucfl.algorithms import REGISTRY, Algorithm, State
from ucfl.deploy.contents import Refused, call_of, content, record, tensors_of
from ucfl.deploy.keeping import Kept, Store
from ucfl.deploy.protocol import (
    BEGIN,
    COLLABORATE,
    END,
    INITIAL,
    JOIN,
    MEASURED,
    METRICS,
    PROTOCOL,
    REFUSED,
    ROUND,
    UPLOAD,
    Answer,
    Columns,
    Held,
    Joined,
    Refusal,
    Settings,
    Turn,
    Work,
    said,
)
from ucfl.errors import Diverged, UcflError, first_line
from ucfl.federation import MODELS, Federation, Gradients, Memory
from ucfl.runs.building import federation
from ucfl.runs.folder import EVALUATED
from ucfl.users import SPLITS, Scenario, Users

#: Packages whose versions decide numbers.
PACKAGES = ("ucfl", "torch", "flwr")


class OneUser(Federation):
    """A federation of one user, whose trainings of the round at hand are remembered.

    ``twice`` has the same user two times: what several models are computed by is not what one is
    computed by, and rounding differences grow. A simulation's bits need at least two (docs/deploy).
    """

    remembered: dict[tuple[int, int], tuple[Tensor, dict[str, Tensor]]]
    twice: Federation | None

    def train(self, theta: Tensor, t: int, *given: Any, **named: Any) -> Tensor:
        """Local training; the same training of the same round is not done again."""
        if self.present is not None:
            return super().train(theta, t, *given, **named)
        key = t, self.memory.trainings
        if key in self.remembered:
            rows, kept = self.remembered[key]
            self.memory.after.update(kept)
            self.memory.trainings += 1
            return rows
        before = set(self.memory.after)
        rows = self._trained(theta, t, *given, **named)
        kept = {name: v for name, v in self.memory.after.items() if name not in before}
        self.remembered[key] = rows, kept
        return rows

    def _trained(self, theta: Tensor, t: int, *given: Any, **named: Any) -> Tensor:
        if self.twice is None:
            return super().train(theta, t, *given, **named)
        memory = self.memory
        old = {name: torch.cat([v, v]) for name, v in (memory.before or {}).items()}
        pair = self.twice.among(None, Memory(old, trainings=memory.trainings))
        rows = pair.train(theta.expand(2, -1), t, *given, **named)[:1]
        memory.after |= {name: value[:1] for name, value in pair.memory.after.items()}
        memory.trainings = pair.memory.trainings
        return rows

    def collaboration_round(self, theta: Tensor, batch: float | None = None) -> Gradients:
        """The user's gradient at θ, and its variance."""
        if self.twice is None:
            return super().collaboration_round(theta, batch)
        found = self.twice.collaboration_round(theta.expand(2, -1), batch)
        return Gradients(found.full[:1], found.variances[:1], found.batch[:1], found.batches[:1])


class Missing(Exception):  # noqa: N818 (what it says)
    """The server must send something first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass
class User:
    """Answers for one user: its name, its data, where it keeps its state, and its own model.

    ``refusal`` is why the server does not take it; empty while it does.
    """

    name: str
    users: Users
    store: Store
    model: str | None = None
    device: str = "auto"
    reproducible: bool = False
    ended: Callable[[], None] = lambda: None
    said: Callable[[str], None] = lambda text: None
    refusal: str = field(default="", init=False)
    _settings: Settings | None = field(default=None, init=False)
    _fed: OneUser | None = field(default=None, init=False)
    _computed: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if len(self.users) != 1:
            raise UcflError(f"a user's data is one file, and {len(self.users)} were given.")
        if self.users.class_names is not None:
            raise UcflError(
                "the labels are texts, whose numbers users on different machines cannot agree on; "
                "number the classes from 0, alike for all users."
            )

    def answer(self, kind: str, found: RecordDict) -> RecordDict:
        """What is said to one of the server's questions."""
        questions = {
            JOIN: self._join,
            COLLABORATE: self._collaborate,
            ROUND: self._round,
            END: self._end,
            REFUSED: self._refused,
        }
        if kind not in questions:
            raise UcflError(f"the server asks {kind[:40]!r}, which this version does not know.")
        try:
            return questions[kind](found)
        except Refused as error:
            raise UcflError(f"{self.name} cannot use the server's message: {error}.") from error

    def _join(self, _: RecordDict) -> RecordDict:
        held, users = self.store.newest(), self.users
        joined = Joined(
            protocol=PROTOCOL,
            name=self.name,
            versions={p: metadata.version(p) for p in PACKAGES}
            | {"python": platform.python_version()},
            sizes={split: int(users.split(split).sizes[0]) for split in SPLITS},
            classes=users.classes,
            input_shape=list(users.input_shape),
            input_type=str(users.train.inputs.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            target_shape=list(users.target_shape),
            target_type=str(users.train.targets.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            checksum=users.checksum(),
            held=None if held is None else Held(run=held.run, round=held.round),
        )
        return content(joined.model_dump())

    def _collaborate(self, found: RecordDict) -> RecordDict:
        settings = said(Settings, call_of(found))
        try:
            algorithm, fed = self._prepared(settings, tensors_of(found, INITIAL))
            began = time.perf_counter()
            measured = algorithm.measured(fed)
        except Missing as missing:
            return content(Answer(needs=missing.what).model_dump())  # type: ignore[arg-type]
        self.said("collaboration round")
        answer = Answer(seconds={"measuring": time.perf_counter() - began})
        return content(answer.model_dump(), **{MEASURED: record(measured)})

    def _round(self, found: RecordDict) -> RecordDict:
        turn = said(Turn, call_of(found))
        settings, t = turn.settings, turn.round
        self.store.check(settings.run)
        try:
            algorithm, fed = self._prepared(settings, tensors_of(found, INITIAL))
            clock = time.perf_counter()
            state = self._finished(algorithm, fed, turn, found)
        except Missing as missing:
            return content(Answer(needs=missing.what).model_dump())  # type: ignore[arg-type]
        finished = time.perf_counter()
        metrics = {}
        for split in EVALUATED:
            for name, values in algorithm.metrics(fed, state, split).items():
                metrics[f"{split}_{name}"] = values.float().cpu()
        evaluated = time.perf_counter()
        self.store.keep(Kept(settings.run, turn.previous, state))
        # One array: each is several requests to the server.
        every = torch.cat([metrics[name] for name in metric_names(fed)])
        records, computed = {METRICS: record({"values": every})}, time.process_time()
        if t is None:
            rows = algorithm.models(state)
            self.store.keep_model(fed.module(rows[0]).state_dict())
        else:
            kept = time.perf_counter()
            try:
                upload = self._upload(algorithm, fed, state, t)
            except Diverged as error:
                self.said(str(error))
                return content(Answer(diverged=True).model_dump(), **records)
            records |= {} if upload is None else {UPLOAD: record({"row": upload[0]})}
            self.said(f"round {t}: trained in {time.perf_counter() - kept:.2f} s")
        seconds: dict[Work, float] = {
            "finishing": finished - clock,
            "evaluating": evaluated - finished,
            "training": time.perf_counter() - evaluated,
            "training_processor": time.process_time() - computed,
            "processor": self._processor(),
        }
        return content(Answer(seconds=seconds).model_dump(), **records)

    def _processor(self) -> float:
        """Seconds that this process has computed since it was last asked that."""
        before, self._computed = self._computed, time.process_time()
        return self._computed - before

    def _end(self, _: RecordDict) -> RecordDict:
        self.said("the server says that training is over")
        self.ended()
        return content({})

    def _refused(self, found: RecordDict) -> RecordDict:
        self.refusal = first_line(Refused(said(Refusal, call_of(found)).why))
        self.ended()
        return content({})

    def _prepared(
        self, settings: Settings, sent: Mapping[str, Tensor]
    ) -> tuple[Algorithm, OneUser]:
        """The algorithm, and the federation of this user with the server's first model."""
        if settings.algorithm.split(":")[0] not in REGISTRY:
            raise UcflError(
                f"the server's algorithm {settings.algorithm!r} is not one of ucfl; code that the "
                "server names is not run here."
            )
        algorithm = algorithms.find(settings.algorithm)
        if self._fed is None or self._settings != settings:
            self._fed, self._settings = self._federation(settings, sent.get("row")), settings
        return algorithm, self._fed

    def _federation(self, settings: Settings, initial: Tensor | None) -> OneUser:
        scenario = Scenario.model_validate(settings.scenario)
        name = scenario.model_name
        if self.model is not None and self.model != name:
            raise UcflError(f"the server trains {name!r}, and {self.name} has {self.model!r}.")
        if self.model is None and name not in MODELS:
            raise UcflError(
                f"the server trains {name!r}, which is not one of ucfl's models; code that the "
                f"server names is not run here: start it with --model {name}, if you trust that."
            )
        users = replace(
            self.users,
            ids=torch.tensor([settings.user]),
            classes=settings.classes,
            names=(self.name,),
        )
        alone = scenario.change({"participation": 1.0})
        fed = self._made(alone, settings, users)
        if fed.rows.shapes != settings.tensors:
            raise UcflError(
                f"{self.name} makes another model of {name!r} than the server: parameters differ; "
                "install the same versions of ucfl and the model on both sides."
            )
        if checksum(fed.rows.initial) != settings.initial:
            if initial is None:
                raise Missing("initial")
            if checksum(initial) != settings.initial or initial.shape != fed.rows.initial.shape:
                raise UcflError("the first model came with another checksum than its own.")
            given = fed.module(initial.to(fed.device))
            fed = self._made(
                alone.change({"model": given, "initialisation": "own"}), settings, users
            )
        return fed

    def _made(self, scenario: Scenario, settings: Settings, users: Users) -> OneUser:
        asked: dict[str, Any] = {"device": self.device, "plain": not self.reproducible}
        fed = federation(scenario, settings.seed, users=users, kind=OneUser, **asked)
        assert isinstance(fed, OneUser)
        fed.remembered, fed.twice = {}, None
        if self.reproducible:
            fed.twice = federation(scenario, settings.seed, users=users.select([0, 0]), **asked)
        fed.server = _outside_of_rounds
        return fed

    def _upload(self, algorithm: Algorithm, fed: OneUser, state: State, t: int) -> Tensor | None:
        """The row [1, P] that this user sends in round t; None where it sends nothing."""
        fed.remembered.clear()
        sent: list[Tensor] = []

        def server(rows: Tensor) -> Tensor:
            sent.append(rows)
            return rows

        self._evaluated(algorithm, fed, state, t, server, present=True)
        if len(sent) > 1:
            raise UcflError(f"{algorithm.name} sends several rows a round, which is not served.")
        return sent[0] if sent else None

    def _finished(self, algorithm: Algorithm, fed: OneUser, turn: Turn, found: RecordDict) -> State:
        """The state after the previous round, with what the server mixed in it."""
        p, run = turn.previous, turn.settings.run
        held = self.store.newest(run, until=p)
        if held is not None and held.round == p:
            return held.state
        if turn.begin is not None:
            state: State = self._begun(fed, turn.begin, tensors_of(found, BEGIN))
            present = False
        elif held is not None and (held.round == p - 1 or not turn.present):
            state, present = held.state, turn.present
        else:
            raise Missing("state")
        if p == 0:
            return state

        def server(rows: Tensor) -> Tensor:
            return _put(rows, turn.columns, found)

        return self._evaluated(algorithm, fed, state, p, server, present=present)

    def _evaluated(
        self,
        algorithm: Algorithm,
        fed: OneUser,
        state: State,
        t: int,
        server: Callable[[Tensor], Tensor],
        *,
        present: bool,
    ) -> State:
        """The algorithm's round t from a state, as a loop would run it."""
        state = {k: v.to(fed.device) if isinstance(v, Tensor) else v for k, v in state.items()}
        now = fed.among(None if present else torch.tensor([False]), Memory.of(state))
        now.server = server
        after = algorithm.round(now, state, t)
        return {**after, **now.memory.after}

    def _begun(self, fed: OneUser, values: Mapping[str, Any], rows: Mapping[str, Tensor]) -> State:
        """The first state: what the server sent, and models that are θ⁰ but for some columns."""
        plain = {k: v for k, v in values.items() if not k.startswith("begin/")}
        theta = fed.initial().clone()
        if "begin/theta" in rows:
            at, part = int(values["begin/at"]), rows["begin/theta"].to(theta)
            if not 0 <= at <= at + part.shape[1] <= theta.shape[1]:
                raise Refused("the first model's columns do not fit")
            theta[:, at : at + part.shape[1]] = part
        own = {name: row.to(fed.device) for name, row in rows.items() if name != "begin/theta"}
        models = {str(name): theta for name in values["begin/models"]}
        return {**plain, **own, **models}


def _outside_of_rounds(rows: Tensor) -> Tensor:
    raise AssertionError("outside of a round nothing is exchanged")


def _put(rows: Tensor, columns: list[Columns], found: RecordDict) -> Tensor:
    """A user's row with the columns that the server mixed."""
    fresh = rows.clone()
    for each in columns:
        part = tensors_of(found, each.record).get("columns")
        width = sum(end - start for start, end in each.ranges)
        if part is None or part.dim() != 1 or len(part) != width:
            raise Refused(f"its record {each.record!r} does not fit its columns")
        at = 0
        for start, end in each.ranges:
            if not 0 <= start <= end <= fresh.shape[1]:
                raise Refused(f"its record {each.record!r} has columns that no model has")
            fresh[:, start:end] = part[at : at + end - start].to(fresh)
            at += end - start
    return fresh


def metric_names(fed: Federation) -> list[str]:
    """What is evaluated after a round, in the order in which it is sent."""
    return [f"{split}_{name}" for split in EVALUATED for name in fed.objective.measured]


def checksum(row: Tensor) -> str:
    """Of a model's numbers."""
    return hashlib.sha256(row.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
