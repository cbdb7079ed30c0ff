"""The members of a run: who they are, the federation that they make, and what they measured.

The server asks each of them once for its measurements, checks what comes, and keeps it beside the
roster: for a restart, and for who joins later.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ucfl.algorithms import Algorithm
from ucfl.deploy.answers import Ledger
from ucfl.deploy.contact import Contact, Dismissal, content_of
from ucfl.deploy.contents import Refused, checked, content, record, size, tensors_of
from ucfl.deploy.protocol import COLLABORATE, INITIAL, MEASURED, Settings
from ucfl.deploy.roster import AtServer, Elsewhere, Roster
from ucfl.deploy.user import checksum
from ucfl.errors import UcflError, unreadable
from ucfl.federation import Federation
from ucfl.runs.building import federation
from ucfl.runs.configuration import explicit
from ucfl.runs.files import write_atomically
from ucfl.users import Scenario
from ucfl.users.effects import OF_USERS
from ucfl.users.given import OWN

log = logging.getLogger("ucfl.deploy")
#: What users sent before the first round, for who comes later and for a restart.
COLLABORATION = "collaboration.safetensors"


@dataclass
class Members(Contact):
    """The roster of a run, and the server's side of its federation.

    ``needs_state`` are those who must be sent their first state.
    """

    roster: Roster = field(init=False)
    fed: Federation = field(init=False)
    ledger: Ledger = field(default_factory=Ledger, init=False)
    scenario: Scenario = field(init=False)
    users: Elsewhere = field(init=False)
    needs_state: set[str] = field(default_factory=set, init=False)

    # -- who they are -----------------------------------------------------------------------------

    def federate(self) -> None:
        """The server's side of the federation of everybody on the roster."""
        classes = max(member.about.classes for member in self.roster.members)
        users, plan = Elsewhere.of(self.roster, classes), self.plan
        fields = plan.scenario.model_dump()
        if plan.own_data:
            defaults = Scenario().model_dump()
            fields |= {name: defaults[name] for name in OF_USERS}
            fields |= {"dataset": f"{OWN}{users.source}"}
        founders = int(self.roster.founders.sum())
        scenario = Scenario.model_validate({**fields, "users": founders, "newcomers": 0})
        self.scenario = explicit(scenario)
        self.fed = federation(
            self.scenario, plan.seed, users=users, device="cpu", kind=AtServer, plain=True
        )
        self.users = users

    def settings(self, name: str) -> Settings:
        """What a member is told of the run."""
        return Settings(
            run=self.roster.run,
            scenario=json.loads(self.scenario.model_dump_json()),
            algorithm=self.plan.algorithm.label,
            seed=self.plan.seed,
            user=self.roster.place(name),
            classes=self.users.classes,
            tensors=self.fed.rows.shapes,
            initial=checksum(self.fed.rows.initial),
        )

    def write_roster(self) -> None:
        """Keep who is who, and what was sent so far."""
        self.roster.write(self.folder, list(self.ledger.entries.values()))

    def rejoined(self) -> None:
        """After a restart: wait until everybody is there again, or for as long as a round."""
        until = time.monotonic() + self.plan.deadline
        waited = set(self.roster.names)
        while waited and time.monotonic() < until:
            self.check_stop(0)
            self.register()
            here = self.arrived() & waited
            for about in self.asked_to_join(here, replace(self.roster, members=())):
                waited.discard(about.name)
                if about.held is None or about.held.run != self.roster.run:
                    self.needs_state.add(about.name)
                known = self.roster.members[self.roster.place(about.name)].about
                if known.checksum != about.checksum:
                    log.warning("%s has other data than when it joined", about.name)
            if not here:
                self.wait()
        for name in sorted(waited):
            log.warning("%s is not back yet; the run goes on without it", name)

    # -- what they measure ------------------------------------------------------------------------

    def collaboration(self, names: Sequence[str]) -> dict[str, Tensor]:
        """What each of these users measures; who does not answer is asked again, until all have.

        A user whose answer cannot be used is refused, and its row left out.
        """
        if not self.asks_before_training():
            return {}
        found: dict[str, dict[str, Tensor]] = {}
        until = time.monotonic() + self.plan.patience
        while missing := set(names) - set(found) - set(self.refused):
            self.check_stop(0)
            asked = missing & self.link.online()
            for name, measured in self.measured(asked, next(iter(found.values()), None)):
                found[name] = measured
            if time.monotonic() > until:
                some = ", ".join(sorted(set(names) - set(found))[:3])
                raise UcflError(
                    f"the collaboration round lacks {some}; see the log, and start again."
                )
            if not asked:
                self.wait()
        if not found:
            raise UcflError("no user's measurements can be used; see the log for why.")
        names = [name for name in names if name in found]
        self.count_measured(list(found.values()))
        words = sorted(found[names[0]])
        return {word: torch.cat([found[name][word] for name in names]) for word in words}

    def measured(
        self, names: set[str], form: Mapping[str, Tensor] | None
    ) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Ask these users once: who answers, with what it measured, or is refused.

        Measurements have the ``form`` of another user's; where there is none yet, the first one's.
        """
        initial = record({"row": self.fed.rows.initial})
        asked = {
            name: content(self.settings(name).model_dump(), **{INITIAL: initial}) for name in names
        }
        refused: dict[str, Dismissal] = {}
        for reply in self.exchange(asked, COLLABORATE, self.plan.deadline):
            try:
                sent = tensors_of(content_of(reply), MEASURED)
                form = self._checked_measurements(sent, sent if form is None else form)
                yield reply.user, dict(sent)
            except Refused as error:
                refused[reply.user] = Dismissal(error)
        self.dismiss(refused)

    def _checked_measurements(
        self, sent: Mapping[str, Tensor], form: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """One user's row of everything, finite and of the form that others' rows have."""
        if not sent or any(value.shape[:1] != (1,) for value in sent.values()):
            raise Refused("its measurements have no row of its own")
        if "gradients" in sent and sent["gradients"].shape[1] > self.fed.rows.size:
            raise Refused("its gradient is longer than the model")
        return checked(sent, {n: (v.dtype, tuple(v.shape)) for n, v in form.items()})

    def count_measured(self, found: Sequence[Mapping[str, Tensor]]) -> None:
        """Note the bytes of a collaboration round."""
        down, up = self.fed.rows.bytes, sum(size(each) for each in found)
        self.ledger.add(0, down=down, delivered=down * len(found), up=up)

    def asks_before_training(self) -> bool:
        """Whether the algorithm asks anything before the first round."""
        return type(self.plan.algorithm).measured is not Algorithm.measured

    def keep_measurements(self, ours: Mapping[str, Tensor]) -> None:
        """Write what members measured, if anything, and who they are."""
        data = {name: value.contiguous() for name, value in ours.items()}
        if data:
            write_atomically(self.folder / COLLABORATION, lambda path: save_file(data, path))
            self.write_roster()

    def stored_measurements(self) -> dict[str, Tensor] | None:
        """What users sent, where that was kept before a restart."""
        file = self.folder / COLLABORATION
        if not file.exists():
            return None
        try:
            return load_file(file)
        except Exception as error:  # safetensors has no class of its own for all of them
            raise unreadable(file, error, "start the run again with --fresh.") from error

    def leave_out_refused(self) -> None:
        """The run without users whose measurements could not be used."""
        members = tuple(m for m in self.roster.members if m.name not in self.refused)
        if members != self.roster.members:
            self.roster = replace(self.roster, members=members)
            self.federate()
