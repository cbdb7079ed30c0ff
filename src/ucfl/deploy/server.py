"""The server: waits for users, finds out who learns from whom, mixes what they send, keeps the run.

It never sees anybody's data, and holds one model for each stream. All that it needs to go on is in
the run's folder before the next message is sent.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import astuple, dataclass, field, replace

import torch
from flwr.app import RecordDict
from torch import Tensor

from ucfl.algorithms.algorithm import declared, description
from ucfl.deploy.answers import Answers, Ledger
from ucfl.deploy.contact import Dismissal, content_of
from ucfl.deploy.contents import Refused, call_of, checked, content, record, tensors_of
from ucfl.deploy.members import COLLABORATION, Members
from ucfl.deploy.mixed import Broadcast, after_round, begin_of, seen, server_state, with_one_more
from ucfl.deploy.protocol import (
    BEGIN,
    END,
    INITIAL,
    METRICS,
    ROUND,
    UPLOAD,
    Answer,
    Turn,
    said,
)
from ucfl.deploy.roster import Member, Roster
from ucfl.deploy.superlink import Reply
from ucfl.deploy.user import metric_names
from ucfl.errors import Diverged, UcflError
from ucfl.federation import Architecture
from ucfl.runs import stopping
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.claim import check_place, check_wish, claimed
from ucfl.runs.configuration import Configuration
from ucfl.runs.deployment import BETWEEN_MACHINES
from ucfl.runs.folder import Run
from ucfl.runs.keep import checkpoint_file, keep_anywhere, keep_or_go_on
from ucfl.runs.progress import Progress
from ucfl.runs.provenance import measures, write_configuration
from ucfl.wireless import Traffic

log = logging.getLogger("ucfl.deploy")
CPU = torch.device("cpu")


@dataclass
class Server(Members):
    """One run between machines."""

    _mixes: bool = field(default=True, init=False)
    _needs_initial: set[str] = field(default_factory=set, init=False)

    # -- from the first user to the last round ----------------------------------------------

    def run(self, *, resume: bool, fresh: bool) -> Run:
        """Train to the last round, or until a stop is asked for."""
        self.plan.check()
        check_wish(resume=resume, fresh=fresh)
        check_place(self.folder)  # before anybody is waited for
        if not (resume or fresh) and checkpoint_file(self.folder).exists():
            raise UcflError(
                f"{self.folder} holds a run; continue it with --resume, replace it with --fresh, "
                "or give --out another folder."
            )
        with stopping.between_rounds():
            known = self._known(resume=resume)
            self.roster = known or self.gathered(Roster(secrets.token_hex(8), ()))
            self.federate()
            configuration = self._configuration()
            with claimed(
                self.folder, configuration, resume=resume, fresh=fresh, on_note=self.on_note
            ) as point:
                point = self._fitting(point)
                if point is None or point.round < configuration.scenario.rounds:
                    if known:
                        self.rejoined()
                    point = point or self._started(configuration, again=known is not None)
                    configuration = self._configuration()
                    self._describe(configuration, point)
                    self._trained(point)
                before(checkpoint_file(self.folder)).unlink(missing_ok=True)
        self._say_end()
        facts = configuration.algorithm
        return Run(self.folder, configuration.scenario, facts, self.plan.seed, self._architecture())

    def _architecture(self) -> Architecture:
        return Architecture.of(self.fed)

    def _known(self, *, resume: bool) -> Roster | None:
        """Who was who, where a run goes on."""
        if not resume or not (self.folder / BETWEEN_MACHINES).exists():
            return None
        roster, entries = Roster.read(self.folder)
        self.ledger = Ledger({int(entry["round"]): entry for entry in entries})
        return roster

    def _fitting(self, point: Checkpoint | None) -> Checkpoint | None:
        """A stored round, whose users are those of the roster: who came after it comes again."""
        if point is not None:
            users = next(iter(point.history.values())).shape[1]
            if users < len(self.roster.members):
                self.roster = replace(self.roster, members=self.roster.members[:users])
                self.federate()
        return point

    def _configuration(self) -> Configuration:
        return Configuration.of(self.scenario, self.plan.algorithm, self.fed, self.users)

    def _describe(self, configuration: Configuration, point: Checkpoint) -> None:
        once = declared(self.plan.algorithm, "start_traffic", self.fed, seen(point.state))
        write_configuration(self.folder, configuration, self.fed, self.users, once, point.round)

    # -- before the first round -------------------------------------------------------------

    def _started(self, configuration: Configuration, *, again: bool) -> Checkpoint:
        """Round 0: who learns from whom, by what users measured; nothing is evaluated yet."""
        nothing = Traffic(0, 0, 0)
        write_configuration(self.folder, configuration, self.fed, self.users, nothing)
        self.write_roster()
        if not again:  # of a run that ended before it had a state
            (self.folder / COLLABORATION).unlink(missing_ok=True)
        algorithm, ours = self.plan.algorithm, self.stored_measurements()
        if ours is None:
            ours = self.collaboration(self.roster.names)
            self.leave_out_refused()
            self.keep_measurements(ours)
        state = algorithm.begun(self.fed, ours)
        if text := description(algorithm, state):
            self.note(text)
        self.needs_state |= set(self.roster.names)
        kept = server_state(algorithm, self.fed, state)
        return Checkpoint(0, 0.0, kept, {}, torch.zeros(0, 3, dtype=torch.float64))

    # -- rounds -----------------------------------------------------------------------------

    def _trained(self, point: Checkpoint) -> None:
        """Round after round; each is stored before the next is asked for."""
        rounds, began = self.scenario.rounds, time.perf_counter() - point.seconds
        stored = point.round if point.history else -1
        described = len(self.roster.members)
        self.ledger.only_until(point.round)
        while True:
            self.check_stop(stored)
            point = self._with_late_users(point)
            t = point.round + 1
            answers = self._turn(point, None if t > rounds else t)
            if not answers.metrics:
                log.warning("nobody answered after round %d; users are asked again", point.round)
                self.wait()
                continue
            clock = time.perf_counter()
            point = replace(self._evaluated(point, answers), seconds=clock - began)
            if t > rounds:
                keep_anywhere(self.folder, self._told(point), CPU)
                if len(self.roster.members) > described:
                    self._describe(self._configuration(), point)
                self.write_roster()
                self._tell(point)
                return
            if point.round > stored and keep_or_go_on(self.folder, self._told(point), CPU):
                stored = point.round
                self.write_roster()
                if len(self.roster.members) > described:
                    self._describe(self._configuration(), point)
                    described = len(self.roster.members)
            self._tell(point)
            kept = time.perf_counter()
            if answers.present or answers.diverged:
                point = self._mixed(point, answers)
            self.ledger.took(t, storing=kept - clock, mixing=time.perf_counter() - kept)

    def _turn(self, point: Checkpoint, t: int | None) -> Answers:
        """One exchange with everybody who is there: finish the round before, begin round t."""
        began, computed, answers = time.perf_counter(), time.process_time(), Answers()
        asked, broadcast = self._questions(point, t)
        self.ledger.only_until(point.round)
        self.ledger.add(point.round, down=broadcast.bytes, delivered=broadcast.delivered)
        for reply in self.exchange(asked, ROUND, self.plan.deadline):
            self._take(reply, answers, training=t is not None and self._in_cohort(reply.user, t))
        if t is not None:
            self.ledger.add(t, up=answers.bytes)
            self.ledger.took(
                t,
                exchange=time.perf_counter() - began,
                server_processor=time.process_time() - computed,
                **answers.processors,
                **answers.slowest,
            )
        return answers

    def _questions(
        self, point: Checkpoint, t: int | None
    ) -> tuple[dict[str, RecordDict], Broadcast]:
        """A message for everybody who is there; streams' contents are in it by reference."""
        algorithm, state = self.plan.algorithm, point.state
        rule = algorithm.rule(self.fed, state) if point.round else None
        self._mixes = algorithm.rule(self.fed, state) is not None
        broadcast, asked = Broadcast(state, rule, self.fed.rows.size), {}
        for name in sorted(self.link.online() & set(self.roster.names)):
            place = self.roster.place(name)
            if place in point.dropped or self.is_silent(name):
                continue
            columns, records = broadcast.to(place)
            values = None
            if name in self.needs_state:
                values, records[BEGIN] = begin_of(algorithm, state, place)
            if name in self._needs_initial:
                records[INITIAL] = record({"row": self.fed.rows.initial})
            turn = Turn(
                settings=self.settings(name),
                previous=point.round,
                present=bool(point.round) and bool(point.cohorts[-1, place]),
                round=None if t is None or not self._in_cohort(name, t) else t,
                columns=columns,
                begin=values,
            )
            asked[name] = content(turn.model_dump(), **records)
        return asked, broadcast

    def _in_cohort(self, name: str, t: int) -> bool:
        """Whether a user is to train in round t; the others finish and evaluate the one before."""
        cohort = self.plan.algorithm.cohort(self.fed, t)
        return cohort is None or bool(cohort[self.roster.place(name)])

    def _take(self, reply: Reply, answers: Answers, *, training: bool) -> None:
        """One user's answer to a round, if it can be used."""
        user = self.roster.place(reply.user)
        try:
            found = content_of(reply)
            answer = said(Answer, call_of(found))
            if answer.needs is not None:
                wanted = {"state": self.needs_state, "initial": self._needs_initial}
                wanted[answer.needs].add(reply.user)
                log.info("%s asks for the %s", reply.user, answer.needs)
                return
            names = metric_names(self.fed)
            values = tensors_of(found, METRICS).get("values", torch.zeros(0))
            if values.shape != (len(names),) or values.dtype != torch.float32:
                raise Refused("its metrics are not those that were asked for")
            if answer.diverged:
                answers.diverged.append(user)
            elif training:
                self._take_upload(user, found, answers)
            answers.metrics[user] = dict(zip(names, values.tolist(), strict=True))
            answers.seconds.append(answer.seconds)
            self.needs_state.discard(reply.user)
            self._needs_initial.discard(reply.user)
        except Refused as error:
            self.refuse(reply.user, error)

    def _take_upload(self, user: int, found: RecordDict, answers: Answers) -> None:
        """The row that a user sends, of the model's size and finite; local training sends none."""
        row, sent = self.fed.rows.initial, tensors_of(found, UPLOAD)
        if self._mixes or sent:
            sent = checked(sent, {"row": (row.dtype, tuple(row.shape))})
            answers.uploads[user] = sent["row"]
        answers.present.append(user)

    def _evaluated(self, point: Checkpoint, answers: Answers) -> Checkpoint:
        """The history with what users found of the round before; NaN for who did not answer."""
        history, m = dict(point.history), len(self.roster.members)
        for name in metric_names(self.fed):
            now = torch.full((1, m), torch.nan)
            for user, values in answers.metrics.items():
                now[0, user] = values[name]
            old = point.history.get(name, torch.zeros(0, m))[: point.round]
            history[name] = torch.cat([old, now])
        return replace(point, history=history)

    def _mixed(self, point: Checkpoint, answers: Answers) -> Checkpoint:
        """One round further: what the streams are now, and what that sent."""
        algorithm, t = self.plan.algorithm, point.round + 1
        dropped = {**point.dropped, **dict.fromkeys(answers.diverged, t)}
        for user in answers.diverged:
            log.warning("%s diverged in round %d and is left out", self.roster.names[user], t)
        m = len(self.roster.members)
        if len(dropped) == m:  # nobody is left to ask
            raise Diverged(answers.diverged, self.roster.names, t)
        present = torch.zeros(m, dtype=torch.bool)
        present[answers.present] = True
        mixing = present & self.roster.founders
        fed = self.fed.among(None if bool(mixing.all()) else mixing)
        rule = algorithm.rule(fed, point.state)
        uploads = {user: row for user, row in answers.uploads.items() if bool(mixing[user])}
        state = after_round(point.state, rule, uploads, self.fed.rows.size)
        sent = declared(algorithm, "traffic", fed, seen(state))
        row = torch.tensor([astuple(sent)], dtype=torch.float64)
        everyone = point.present is None and bool(present.all())
        return replace(
            point,
            round=t,
            state=state,
            traffic=torch.cat([point.traffic, row]),
            dropped=dropped,
            present=None if everyone else torch.cat([point.cohorts, present[None]]),
        )

    # -- who comes later --------------------------------------------------------------------

    def _with_late_users(self, point: Checkpoint) -> Checkpoint:
        """Users who come now: their row of W is made, and they join the nearest stream."""
        self.register()
        new = self.arrived() - set(self.roster.names)
        new = {name for name in new if not self.is_silent(name)}
        for about in self.asked_to_join(new, self.roster) if point.round else ():
            if about.classes > self.users.classes:
                why = Refused("it has classes that nobody else has")
                self.dismiss({about.name: Dismissal(why)})
                continue
            point = self._with_late_user(point, Member(about, founder=False))
        return point

    def _with_late_user(self, point: Checkpoint, member: Member) -> Checkpoint:
        """The run with one more user, who listens to a stream and has no weight in any.

        Nobody waits for one whose measurements do not come, or cannot be used.
        """
        fed, m, before = self.fed, len(self.roster.members), self.roster
        self.roster = replace(self.roster, members=(*self.roster.members, member))
        ours = {name: rows[:m] for name, rows in (self.stored_measurements() or {}).items()}
        theirs: dict[str, Tensor] = {}
        if self.asks_before_training():
            form = {name: rows[:1] for name, rows in ours.items()}
            theirs = dict(self.measured({member.name}, form)).get(member.name, {})
            if not theirs:
                self.roster = before
                return point
            self.count_measured([theirs])
        state = with_one_more(self.plan.algorithm, fed, point.state, ours, theirs)
        self.federate()
        self.keep_measurements({name: torch.cat([ours[name], theirs[name]]) for name in ours})
        self.needs_state.add(member.name)
        self.write_roster()
        self.note(f"{member.name} has joined after round {point.round}")
        history = {
            name: torch.cat([rows, rows.new_full((len(rows), 1), torch.nan)], 1)
            for name, rows in point.history.items()
        }
        nobody = torch.zeros(point.round, 1, dtype=torch.bool)
        present = torch.cat([point.cohorts, nobody], 1)
        return replace(point, state=state, history=history, present=present)

    def _told(self, point: Checkpoint) -> Checkpoint:
        return replace(point, findings=self.plan.algorithm.findings(seen(point.state)))

    def _tell(self, point: Checkpoint) -> None:
        if self.on_round and point.round:
            measure = measures(self.fed)[0]
            test = point.history[f"test_{measure.name}"][-1].numpy()
            label, rounds = self.plan.algorithm.label, self.scenario.rounds
            self.on_round(Progress.at(label, point.round, rounds, test, measure))

    def _say_end(self) -> None:
        """Tell users that training is over; who is gone need not hear it."""
        here = self.link.online() & set(self.roster.names)
        for _ in self.exchange({name: content({}) for name in here}, END, 10.0):
            pass
