"""A round's deadline: users whose models would arrive later drop out of that round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucfl import wireless
from ucfl.errors import UcflError
from ucfl.federation import Federation, draws
from ucfl.users import Scenario, Users
from ucfl.wireless import Audience, System, Traffic

#: What keeps these draws apart from others of the same seed, round and user.
KEY = -23


@dataclass(frozen=True, eq=False)
class Deadline:
    """Who is late in a round of at most ``time`` on a network.

    A user's model arrives when all broadcasts are sent, it has computed, and its own upload is
    done. Users compute for T_i = T_min + Exp(1/μ) per unit of work, drawn anew in every round by
    (seed, round, user). ``ids`` are those of all users, in all processes.
    """

    time: float
    system: System
    name: str
    ids: Tensor
    seed: int

    @classmethod
    def of(cls, scenario: Scenario, fed: Federation, users: Users) -> Deadline | None:
        """The scenario's deadline, where it has one; ``users`` are those of all processes."""
        if scenario.deadline is None or scenario.system is None:
            return None
        system = wireless.find(scenario.system).serving(len(users), fed.rows.bytes)
        return cls(scenario.deadline, system, scenario.system, users.ids.cpu(), fed.seed)

    def late(self, t: int, asked: Tensor, traffic: Traffic, audience: Audience | None) -> Tensor:
        """[m]: who of the users ``asked`` [m] is late in round t, which has this traffic."""
        return asked & torch.from_numpy(
            self._arrivals(asked, traffic, audience, self.computing(t)) > self.time
        )

    def computing(self, t: int) -> NDArray[np.float64]:
        """[m]: how long each user takes for a unit of work in round t."""
        drawn = draws.uniform(self.seed, t, self.ids, KEY).numpy()
        times: NDArray[np.float64] = self.system.t_min - self.system.mean_delay * np.log1p(-drawn)
        return times

    def fastest(self, asked: Tensor, traffic: Traffic, audience: Audience | None) -> float:
        """When the first model of those asked can arrive, computing at best."""
        at_best = np.full(len(self.ids), self.system.t_min)
        return float(self._arrivals(asked, traffic, audience, at_best).min())

    def missed(self, fastest: float, method: str) -> UcflError:
        """The error for a deadline that nobody can meet."""
        unit = self.system.unit
        return UcflError(
            f"nobody can meet a deadline of {self.time:g} {unit} in {self.name}: the fastest user "
            f"takes {fastest:.3g} {unit} for a round of {method}; give a longer deadline."
        )

    def _arrivals(
        self,
        asked: Tensor,
        traffic: Traffic,
        audience: Audience | None,
        computing: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """[m]: when the models of those asked arrive; infinite for the others."""
        here, found = asked.numpy(), np.full(len(asked), np.inf)
        if here.any():
            heard = None if audience is None else audience.among(here)
            found[here] = self.system.among(here).arrivals(
                traffic, computing[here], heard, self.time
            )
        return found

    def in_words(self, late: Tensor, cohorts: Tensor) -> str:
        """What came of it in a run, whose rounds had these late and present users."""
        users, nobody = late.shape[1], int((late.any(1) & ~cohorts.any(1)).sum())
        return (
            f"deadline of {self.time:g} {self.system.unit} in {self.name}: in a round, "
            f"{float(late.sum(1).double().mean()):.1f} of {users} users were late on average"
            + (f", and in {nobody} of {len(late)} rounds all who were asked." if nobody else ".")
        )
