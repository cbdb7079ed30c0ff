"""Talking with users: who may take part, who is there, questions and answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flwr.app import RecordDict

from ucfl.algorithms import Algorithm
from ucfl.deploy.contents import Refused, call_of, content
from ucfl.deploy.protocol import JOIN, REFUSED, Joined, Refusal, said
from ucfl.deploy.roster import Member, Roster
from ucfl.deploy.superlink import Reply, SuperLink, mark
from ucfl.errors import UcflError
from ucfl.federation import Links
from ucfl.runs import stopping
from ucfl.runs.loop import OnNote, Stopped
from ucfl.runs.progress import OnRound
from ucfl.users import Scenario

log = logging.getLogger("ucfl.deploy")
#: Seconds that a user has to say who it is, and to hear that it is refused.
JOINING, HEARING = 60.0, 5.0


@dataclass(frozen=True)
class Plan:
    """What is trained, by whom, and how long users are waited for."""

    scenario: Scenario
    algorithm: Algorithm
    seed: int
    users: int
    deadline: float
    patience: float = 3600.0
    own_data: bool = True

    def check(self) -> None:
        """Raise where the algorithm needs all users in one place."""
        if not self.algorithm.deployable:
            raise UcflError(
                f"{self.algorithm.name} cannot be deployed: its rounds exchange more than a row of "
                "each user; choose layered-user-centric, user-centric, fedavg, fedprox or ditto."
            )
        if Links.of(self.scenario.uplink, self.scenario.downlink) != Links():
            raise UcflError(
                "compressed links are simulated only; leave uplink and downlink at none to deploy."
            )
        if self.scenario.deadline:
            raise UcflError(
                "the scenario's deadline is one of a simulated network; leave it out, and give "
                "--deadline in seconds."
            )


@dataclass(frozen=True)
class Dismissal:
    """Why an answer cannot be used, and when it came (monotonic)."""

    why: Refused
    at: float = field(default_factory=time.monotonic)


@dataclass
class Contact:
    """What a server needs to talk with users.

    ``keys`` gives the public keys of who may take part, by name. ``refused`` and ``silent`` map who
    is left out to since when: who was refused is asked again when it connects anew, who missed a
    deadline when it asks for messages.
    """

    plan: Plan
    link: SuperLink
    keys: Callable[[], Mapping[str, bytes]]
    folder: Path
    on_round: OnRound | None = None
    on_note: OnNote | None = None
    refused: dict[str, float] = field(default_factory=dict, init=False)
    silent: dict[str, float] = field(default_factory=dict, init=False)
    _said: set[str] = field(default_factory=set, init=False)

    def register(self) -> None:
        """Let in whose key is there; keys may be added while the server runs.

        At the start, a file that is no key is an error; later, it may be one that is half copied.
        """
        try:
            for name, key in self.keys().items():
                if name not in self.link.nodes:
                    self.link.register(name, key)
                    log.info("registered: %s (%s)", name, mark(key))
        except UcflError as error:
            if not self.link.nodes:
                raise
            if str(error) not in self._said:
                self._said.add(str(error))
                log.warning("no new key is registered until this is mended: %s", error)

    def gathered(self, roster: Roster) -> Roster:
        """The roster of the users that are waited for, in the order of their names."""
        until = time.monotonic() + self.plan.patience
        joined: dict[str, Joined] = {}
        self.note(f"waiting for {self.plan.users} users")
        while len(joined) < self.plan.users:
            self.check_stop(0)
            self.register()
            new = self.arrived() - set(joined)
            for about in self.asked_to_join(new, roster):
                joined[about.name] = about
                first = Member(next(iter(joined.values())))
                roster = replace(roster, members=(first,))
                self.note(f"{about.name} has joined ({len(joined)} of {self.plan.users})")
            if time.monotonic() > until:
                raise UcflError(
                    f"{len(joined)} of {self.plan.users} users have come in "
                    f"{self.plan.patience:.0f} seconds; see the log for who was refused, or wait "
                    "for fewer with --users."
                )
            if not new:
                self.wait()
        chosen = sorted(joined)[: self.plan.users]
        return replace(roster, members=tuple(Member(joined[name]) for name in chosen))

    def asked_to_join(self, names: set[str], roster: Roster) -> list[Joined]:
        """Who these users are; those whose answer does not fit are refused, with a line each."""
        found: list[Joined] = []
        refused: dict[str, Dismissal] = {}
        for reply in self.exchange({name: content({}) for name in names}, JOIN, JOINING):
            try:
                about = said(Joined, call_of(content_of(reply)))
                if about.name != reply.user:
                    raise Refused(
                        f"it calls itself {about.name[:64]!r}, and its key is that of {reply.user}"
                    )
                roster.check(about)
                found.append(about)
            except Refused as error:
                refused[reply.user] = Dismissal(error)
        self.dismiss(refused)
        return found

    def arrived(self) -> set[str]:
        """Who is connected and may be asked: who was refused, only if it has connected since."""
        since = {name: t for name, t in self.refused.items() if self.link.came(name) <= t}
        self.refused = since
        return self.link.online() - set(since)

    def wait(self) -> None:
        """Until something changes at the nodes, for a moment."""
        with self.link.state.changed:
            self.link.state.changed.wait(0.5)

    def exchange(
        self, contents: Mapping[str, RecordDict], kind: str, seconds: float
    ) -> Iterator[Reply]:
        """Ask, and give answers as they come; who is silent until the deadline is named."""
        if not contents:
            return
        self.link.send(contents, kind, seconds + 5)
        waiting = set(contents)
        for reply in self.link.replies(time.monotonic() + seconds):
            waiting.discard(reply.user)
            yield reply
        for name in sorted(waiting):
            self.silent[name] = time.monotonic()  # asked again when it asks for messages
            log.warning("%s did not answer within %.0f seconds (%s)", name, seconds, kind)

    def is_silent(self, name: str) -> bool:
        """Whether a user has missed a deadline and has not asked for messages since."""
        return self.link.heard(name) <= self.silent.get(name, -1.0)

    def refuse(self, user: str, why: Refused) -> None:
        """Say that an answer cannot be used."""
        log.warning("refused: the answer of %s: %s", user, why)

    def dismiss(self, refused: Mapping[str, Dismissal]) -> None:
        """Users who do not take part: each is told why, so that its process ends.

        One that has connected again since its answer is another process, which may be asked.
        """
        told: dict[str, RecordDict] = {}
        for user, each in refused.items():
            self.refuse(user, each.why)
            self.refused[user] = each.at
            if self.link.came(user) <= each.at:
                told[user] = content(Refusal(why=str(each.why)[:200]).model_dump())
        for _ in self.exchange(told, REFUSED, HEARING):
            pass  # what it answers changes nothing

    def check_stop(self, kept: int) -> None:
        """Stop where that is asked for; rounds up to ``kept`` are stored."""
        if stopping.asked():
            raise Stopped(self.folder, max(kept, 0))

    def note(self, text: str) -> None:
        """Tell a person."""
        if self.on_note:
            self.on_note(text)


def content_of(reply: Reply) -> RecordDict:
    """What was answered; why there is nothing, where there is not."""
    if reply.content is None:
        raise Refused(reply.error or "nothing")
    return reply.content
