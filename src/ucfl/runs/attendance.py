"""Who takes part in a round: the cohort, without users that diverged or miss the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ucfl import distributed
from ucfl.algorithms import Algorithm, State
from ucfl.algorithms.algorithm import declared
from ucfl.federation import Federation
from ucfl.federation.wire import LINKS
from ucfl.runs.deadline import Deadline
from ucfl.users import Users
from ucfl.wireless import Audience, Traffic

#: Cohorts that are looked at for somebody who can meet the deadline.
TRIED = 100


@dataclass(frozen=True, eq=False)
class Attendance:
    """Of all ``users``, in all processes; ``fed`` has those of this one."""

    algorithm: Algorithm
    fed: Federation
    users: Users
    deadline: Deadline | None

    def of(
        self, t: int, dropped: Mapping[int, int], state: State
    ) -> tuple[Tensor | None, Tensor | None]:
        """[m]: who takes part in round t (None: everyone), and who is late (None: no deadline).

        The state is the one before the round, and what the round sends is what can be told of it
        then: methods whose streams change as they go declare those of the round before.
        """
        asked, late = self._asked(t, dropped), None
        if self.deadline is not None:
            late = self.deadline.late(t, asked, self._traffic(asked, state), self._audience(state))
            asked = asked & ~late
        return (None if bool(asked.all()) else asked), late

    def check(self, state: State, rounds: int) -> None:
        """Raise where nobody can meet the deadline in any of the rounds (the first of many)."""
        if self.deadline is None:
            return
        fastest, audience = torch.inf, self._audience(state)
        for t in range(1, min(rounds, TRIED) + 1):
            asked = self._asked(t, {})
            if asked.any():
                sent = self._traffic(asked, state)
                fastest = min(fastest, self.deadline.fastest(asked, sent, audience))
            if fastest <= self.deadline.time:
                return
        raise self.deadline.missed(fastest, self.algorithm.label)

    def mine(self, present: Tensor | None) -> Tensor | None:
        """What of that concerns this process's users."""
        return None if present is None else present[distributed.mine(self.fed.m, self.fed.device)]

    def _asked(self, t: int, dropped: Mapping[int, int]) -> Tensor:
        """[m]: who is to take part in round t."""
        mine = self.algorithm.cohort(self.fed, t)
        if mine is None:
            asked = torch.ones(len(self.users), dtype=torch.bool)
        else:
            asked = distributed.gathered(mine.to(self.fed.device)).to("cpu", copy=True)
        asked[list(dropped)] = False
        return asked

    def _traffic(self, asked: Tensor, state: State) -> Traffic:
        """What the round declares, as compressed as whole models are."""
        among = self.fed.among(self.mine(asked))
        sent = declared(self.algorithm, "next_traffic", among, state)
        up, down = (self.fed.links.factor(link, self.fed.rows) for link in LINKS)
        return Traffic(down=down * sent.down, up=up * sent.up, work=sent.work)

    def _audience(self, state: State) -> Audience | None:
        """That of all processes, where each knows of its own users."""
        found = self.algorithm.findings(state).on_air(self.fed).audience
        if found is None or distributed.ranks() == 1:
            return found
        device = self.fed.device
        return found.of_all(
            lambda labels: distributed.gathered(torch.from_numpy(labels).to(device)).cpu().numpy()
        )
