"""The round loop: train, evaluate, remember; stop anywhere and go on later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ucfl import distributed
from ucfl.algorithms import Algorithm, State
from ucfl.algorithms.algorithm import check_models, check_state, declared, description
from ucfl.errors import Diverged, UcflError
from ucfl.federation import Federation, Memory, Wire
from ucfl.federation.wire import LINKS
from ucfl.runs import stopping
from ucfl.runs.arrivals import welcome
from ucfl.runs.attendance import Attendance
from ucfl.runs.callbacks import Callback, RoundInfo, call, extended
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.configuration import Configuration
from ucfl.runs.folder import (
    EVALUATED,
    dropped_in_words,
    read_configuration,
)
from ucfl.runs.keep import checkpoint_file, complete, keep_anywhere, keep_or_go_on
from ucfl.runs.progress import OnRound, Progress
from ucfl.runs.provenance import measures, write_configuration
from ucfl.users import Users
from ucfl.wireless import Traffic
from ucfl.words import either

#: What becomes of a user whose model is no longer finite.
OnDivergence = Literal["drop", "stop"]
#: Told in plain words what an algorithm found before its first round.
OnNote = Callable[[str], None]


class Stopped(Exception):  # noqa: N818 (a stop is no error)
    """Ctrl-C came; the run is on disk up to its last whole round."""

    def __init__(self, folder: Path, t: int) -> None:
        super().__init__(f"stopped after round {t}")
        self.folder, self.round = folder, t


@dataclass(frozen=True)
class Loop:
    """The rounds of one run, in a folder that is this process's own."""

    configuration: Configuration
    algorithm: Algorithm
    fed: Federation
    users: Users
    folder: Path
    on_divergence: OnDivergence
    checkpoint_seconds: float
    on_round: OnRound | None
    on_note: OnNote | None
    attendance: Attendance
    callbacks: tuple[Callback, ...] = ()

    def __call__(self, point: Checkpoint | None) -> None:
        """Train from a checkpoint, or from the start, to the end or until a stop is asked for."""
        rounds, device = self.configuration.scenario.rounds, self.fed.device
        began = time.perf_counter()
        if point is None:
            if distributed.decided(False, stopping.asked(), device)[1]:  # in the run before this
                raise Stopped(self.folder, 0)
            point = self._start()
        else:
            point = self._on_device(point)
        began -= point.seconds
        once = declared(self.algorithm, "start_traffic", self.fed, point.state)
        if distributed.is_first():
            self._describe(point, once)
        saved, first = time.perf_counter(), point.round + 1
        kept = point.round
        try:
            while True:
                due = time.perf_counter() - saved >= self.checkpoint_seconds
                due, stop = distributed.decided(due, stopping.asked(), device)
                if stop or point.round == rounds or point.stopped:
                    break
                if due and point.round > kept:
                    kept = (
                        point.round
                        if keep_or_go_on(self.folder, self._told(point), device)
                        else kept
                    )
                    saved = time.perf_counter()
                # One assignment: a stop anywhere in a round leaves the round before, whole.
                point = self._called_back(point, self._after_a_round(point, began))
                self._tell(point)
                if point.round == first:
                    self._note(f"executor: {self.fed.executor}")
            over = point.round == rounds or bool(point.stopped)
            if over and not stop and not point.newcomers:
                if point.round > kept and self.users.newcomers is not None:
                    keep_anywhere(self.folder, self._told(point), device)  # what follows may fail
                    kept = point.round
                point = self._with_newcomers(point)
                kept = -1 if point.newcomers else kept
            if point.round > kept:
                keep_anywhere(self.folder, self._told(point), device)
        except (KeyboardInterrupt, Diverged) as error:
            # Where one process of several was interrupted, the others are elsewhere.
            if point.round > kept and (distributed.ranks() == 1 or isinstance(error, Diverged)):
                keep_anywhere(self.folder, self._told(point), device)
            if isinstance(error, Diverged):
                raise
            raise Stopped(self.folder, point.round) from None
        if point.stopped:
            self._note(f"{self.algorithm.label}: {point.stopped}; --resume goes on.")
        elif point.round < rounds:
            raise Stopped(self.folder, point.round)
        distributed.barrier()  # the first has stored the last round: the one before may go
        before(checkpoint_file(self.folder)).unlink(missing_ok=True)
        if point.dropped:
            self._note(dropped_in_words(point.dropped, self.users.names))
        if self.attendance.deadline is not None:
            self._note(self.attendance.deadline.in_words(point.missed, point.cohorts))

    def _describe(self, point: Checkpoint, once: Traffic) -> None:
        """Write what the run is; of a finished one, only what a stop has left undone."""
        rounds = self.configuration.scenario.rounds
        finished = point.round == rounds or bool(point.stopped)
        if not finished or read_configuration(self.folder)["scenario"]["rounds"] != rounds:
            write_configuration(
                self.folder, self.configuration, self.fed, self.users, once, point.round
            )
        if finished:
            complete(self.folder, point)

    def _start(self) -> Checkpoint:
        """Round 0: what the algorithm finds out before training."""
        try:
            state = self.algorithm.start(self.fed)
        except Diverged as error:  # one process does not know the others' names
            raise Diverged(error.users, self.users.names, error.round) from None
        check_state(self.algorithm.name, state)
        check_models(self.algorithm, self.fed, state, "start()")
        if text := description(self.algorithm, state):
            self._note(text)
        self.attendance.check(state, self.configuration.scenario.rounds)
        point = Checkpoint(0, 0.0, state, {}, torch.zeros(0, 3, dtype=torch.float64))
        return replace(self._told(point), history=self._evaluated(point))

    def _told(self, point: Checkpoint) -> Checkpoint:
        """The checkpoint with what the algorithm says of its state: readers have no other way."""
        findings = self.algorithm.findings(point.state).on_air(self.fed)
        findings = findings.of_all(
            len(self.users), lambda each: self.fed.gathered(each.to(self.fed.device))
        )
        try:
            findings.check(len(self.users))
        except ValueError as error:
            raise UcflError(
                f"{self.algorithm.name}: what collaboration() gives cannot be reported: {error}."
            ) from error
        return replace(point, findings=findings)

    def _on_device(self, point: Checkpoint) -> Checkpoint:
        state = {
            k: v.to(self.fed.device) if isinstance(v, Tensor) else v for k, v in point.state.items()
        }
        return replace(point, state=state)

    def _after_a_round(self, point: Checkpoint, began: float) -> Checkpoint:
        """One round further: state, traffic and accuracies as one value.

        A round in which models diverge did not happen: it is run again without their users, who
        are absent from then on. Rounds are pure functions of the state before them.
        """
        t, dropped, nobody = point.round + 1, dict(point.dropped), False
        while True:
            memory = Memory.of(point.state)
            wire = Wire.of(self.fed.links, self.fed.seed, t, point.state)
            present, late = self.attendance.of(t, dropped, point.state)
            fed = self.fed.among(self.attendance.mine(present), memory, wire)
            if present is not None and not bool(present.any()):
                state, nobody = point.state, True  # a round that changes nothing
                break
            try:
                state = self.algorithm.round(fed, point.state, t)
                check_state(self.algorithm.name, state)
                if t == 1:
                    check_models(self.algorithm, self.fed, state, "round()")
                state = {**state, **fed.memory.after, **fed.wire.after}
                break
            except Diverged as error:
                dropped |= dict.fromkeys(error.users, t)
                if self.on_divergence == "stop" or len(dropped) == len(self.users):
                    raise Diverged(error.users, self.users.names, t) from None
                self._note(str(Diverged(error.users, self.users.names, t)))
        sent = Traffic(0, 0, 0) if nobody else self._sent(fed, state)
        after = Checkpoint(
            t,
            time.perf_counter() - began,
            state,
            point.history,
            torch.cat([point.traffic, torch.tensor([astuple(sent)], dtype=torch.float64)]),
            dropped,
            None
            if point.present is None and present is None
            else torch.cat([point.cohorts, _everyone(self.users, present)[None]]),
            None if late is None else torch.cat([point.missed, late[None]]),
        )
        return replace(after, history=self._evaluated(after))

    def _sent(self, fed: Federation, state: State) -> Traffic:
        """What a round has sent: what the algorithm declares, where links compress as it was."""
        whole, wire = declared(self.algorithm, "traffic", fed, state), fed.wire
        wire.check(self.algorithm.name, whole.down, whole.up, fed.rows.size)
        up, down = (
            wire.bytes[link] / fed.rows.bytes if fed.links.compresses(link) else models
            for link, models in zip(LINKS, (whole.up, whole.down), strict=True)
        )
        return Traffic(down=down, up=up, work=whole.work)

    def _with_newcomers(self, point: Checkpoint) -> Checkpoint:
        """The last round, with what newcomers get out of it."""
        if self.users.newcomers is None:
            return point
        t = point.round + 1
        found = welcome(self.algorithm, self.fed, point.state, self.users.newcomers, t)
        if found is None:
            self._note(f"{self.algorithm.label} has no model for newcomers.")
        return replace(point, newcomers=found or {})

    def _called_back(self, before: Checkpoint, after: Checkpoint) -> Checkpoint:
        """The round with what callbacks add to its history, or stopped by one of them."""
        info = RoundInfo(
            self.algorithm,
            self.fed,
            self.folder,
            after.round,
            self.configuration.scenario.rounds,
            after.state,
            after.history,
            Traffic(*after.traffic[-1].tolist()),
            after.seconds,
        )
        added, stopped = call(self.callbacks, info)
        history = extended(before.history, after.history, added)
        return replace(after, history=history, stopped=stopped if info.round < info.rounds else "")

    def _evaluated(self, point: Checkpoint) -> dict[str, Tensor]:
        """The history with the metrics of the state's models appended; NaN for who is gone.

        Everyone is evaluated, whoever took part in the round.
        """
        gone, history = list(point.dropped), {}
        for split in EVALUATED:
            found = self.algorithm.metrics(self.fed, point.state, split)
            for name in self.fed.objective.measured:
                now = distributed.gathered(found[name].float()).cpu()[None]
                now[:, gone] = torch.nan
                before = point.history.get(f"{split}_{name}")
                history[f"{split}_{name}"] = now if before is None else torch.cat([before, now])
        self._say_who_has_none(point, history)
        return history

    def _say_who_has_none(self, point: Checkpoint, history: Mapping[str, Tensor]) -> None:
        """Name users whose metric is NaN from now on, though they have test data."""
        metric = measures(self.fed)[0].name
        rows = history[f"test_{metric}"][-2:].isnan()
        new = rows[-1] & (self.users.test.sizes > 0) & ~(rows[0] if len(rows) > 1 else False)
        new[list(point.dropped)] = False
        if names := [self.users.names[user] for user in torch.nonzero(new)[:, 0].tolist()]:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            have = either(len(names), "has", "have")
            self._note(
                f"after round {point.round}, {', '.join(names[:3])}{more} {have} no {metric}: it "
                "is NaN where a model may not be finite; means are those of the others."
            )

    def _tell(self, point: Checkpoint) -> None:
        if self.on_round:
            measure, rounds = measures(self.fed)[0], self.configuration.scenario.rounds
            test = point.history[f"test_{measure.name}"][-1].numpy()
            self.on_round(Progress.at(self.algorithm.label, point.round, rounds, test, measure))

    def _note(self, text: str) -> None:
        if self.on_note:
            self.on_note(text)


def _everyone(users: Users, present: Tensor | None) -> Tensor:
    """[m]: who takes part."""
    return torch.ones(len(users), dtype=torch.bool) if present is None else present
