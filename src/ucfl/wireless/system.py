"""Traffic becomes time: the paper's system of three numbers (sec. V-D)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.wireless.audience import Audience, Labels
from ucfl.wireless.checks import check_not_negative, check_positive
from ucfl.wireless.traffic import Traffic

Floats = NDArray[np.float64]
#: Rounds whose computing times stand for all: a mean of so many is off by 2% of one's deviation.
DRAWS = 2000


def harmonic(m: int) -> float:
    """H_m = 1 + 1/2 + … + 1/m."""
    return float(scipy.special.digamma(m + 1) + np.euler_gamma)


class System(ABC):
    """A network: how long a round's downlink, uplink and computing take.

    Rounds are synchronous: broadcasts one after another, then everybody computes, then everybody
    sends, so a round lasts T_dl(streams) + work · T_comp + T_ul. Users compute for
    T_i = T_min + Exp(1/μ) per unit of work, and the slowest decides.
    """

    t_min: float
    mean_delay: float
    #: What the times are measured in.
    unit: ClassVar[str]

    @abstractmethod
    def downlink(
        self, models: float, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """Time to broadcast ``models`` models; ``audience`` says who listens to which of them."""

    @abstractmethod
    def uplink(self, models: float, users: int) -> float:
        """Time until every user has sent ``models`` models."""

    def upload_times(self, models: float, users: int) -> Floats:
        """[m]: how long each user sends ``models`` models; equal where users are alike."""
        return np.full(users, self.uplink(models, users))

    def among(self, present: NDArray[np.bool_]) -> System:
        """The network with some of its users alone: itself, if it tells no user from another."""
        return self

    def serving(self, users: int, model_bytes: float) -> System:
        """The network with these users and this model in it: itself, if it takes any."""
        return self

    def compressed(self, down: float, up: float) -> System:
        """The network for messages of so many bytes for each byte of the model.

        Who listens to what is counted in models, so that compression is a property of the messages
        and changes no traffic: a broadcast of 8 of 32 bits is ``down`` = 1/4.
        """
        raise UcflError(f"{type(self).__name__} cannot cost compressed messages.")

    def joules(
        self, traffic: Traffic, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """Energy of a round; NaN where a system knows no power."""
        return math.nan

    def computing(self, users: int) -> float:
        """T_comp = E[max_i T_i] = T_min + H_m / μ (paper, sec. V-D)."""
        return self.t_min + self.mean_delay * harmonic(_counted(users))

    def drawn_computing(self, users: int, seed: int, t: int) -> float:
        """max_i T_i as round t of this seed happens to draw it."""
        bits = np.random.Philox(key=np.array([seed, t], dtype=np.uint64))
        slowest = np.random.Generator(bits).exponential(size=_counted(users)).max()
        return self.t_min + self.mean_delay * float(slowest)

    def round_time(
        self,
        traffic: Traffic,
        users: int,
        audience: Audience | Labels | None = None,
        draw: tuple[int, int] | None = None,
    ) -> float:
        """How long a round lasts: in expectation, or with computing times ``draw`` = (seed, t)."""
        computing = self.computing(users) if draw is None else self.drawn_computing(users, *draw)
        sending = self.downlink(traffic.down, users, audience) + self.uplink(traffic.up, users)
        return sending + traffic.work * computing

    def arrivals(
        self,
        traffic: Traffic,
        computing: Floats,
        audience: Audience | Labels | None = None,
        deadline: float = math.inf,
    ) -> Floats:
        """[m]: when each user's model arrives, from the beginning of the round.

        ``computing`` [m] is how long each user takes for a unit of work. What cannot arrive by the
        ``deadline`` is not sent, and keeps nobody waiting.
        """
        ready = self.downlink(traffic.down, len(computing), audience) + traffic.work * computing
        return self._sent(ready, self.upload_times(traffic.up, len(computing)), deadline)

    def _sent(self, ready: Floats, sending: Floats, deadline: float) -> Floats:
        """When models that are ready at some times have arrived; all are sent at the same time."""
        return ready + sending

    def elapsed(
        self,
        start: Traffic,
        rounds: NDArray[np.float64],
        users: int,
        audience: Audience | Labels | None = None,
        seed: int | None = None,
        present: NDArray[np.bool_] | None = None,
        deadline: float = math.inf,
        late: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]:
        """[T + 1] times at which the rounds end; first, the end of what happens before them.

        ``rounds`` [T, 3] has each round's models down, models up and work; ``present`` [T, m] says
        who took part (None: everyone). A seed draws the computing times; without one they are the
        expected ones. No round is longer than the ``deadline``, and one with ``late`` [T, m] users
        is as long.
        """

        known: dict[Traffic, float] = {}

        def lasts(t: int, traffic: Traffic) -> float:
            draw = None if seed is None else (seed, t)

            def price(net: System, m: int, heard: Audience | None) -> float:
                return net.round_time(traffic, m, heard, draw)

            alike = known if seed is None else {}
            return self._of_round(t, traffic, users, audience, present, price, alike)

        def waited(t: int, traffic: Traffic) -> float:
            if late is not None and late[t - 1].any():
                return deadline
            return min(deadline, lasts(t, traffic))

        every = [Traffic(*row) for row in rounds.tolist()]
        times = [waited(t, traffic) for t, traffic in enumerate(every, start=1)]
        return np.cumsum([lasts(0, start), *times])

    def energy(
        self,
        start: Traffic,
        rounds: NDArray[np.float64],
        users: int,
        audience: Audience | Labels | None = None,
        present: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]:
        """[T + 1] joules until the rounds end, as :meth:`elapsed` has their times.

        NaN where a system knows no power. What late users spend in vain is not counted.
        """

        known: dict[Traffic, float] = {}

        def spent(t: int, traffic: Traffic) -> float:
            def price(net: System, m: int, heard: Audience | None) -> float:
                return net.joules(traffic, m, heard)

            return self._of_round(t, traffic, users, audience, present, price, known)

        every = [Traffic(*row) for row in rounds.tolist()]
        return np.cumsum([spent(0, start), *(spent(t, each) for t, each in enumerate(every, 1))])

    def _of_round(
        self,
        t: int,
        traffic: Traffic,
        users: int,
        audience: Audience | Labels | None,
        present: NDArray[np.bool_] | None,
        price: Callable[[System, int, Audience | None], float],
        known: dict[Traffic, float],
    ) -> float:
        """The price of round t for those who took part; before the first round, for everyone.

        ``known`` remembers that of rounds with everyone, most of which are alike.
        """
        listeners = Audience.of(audience)
        if t == 0:  # θ⁰ is for everyone, whatever streams there will be
            return price(self, users, None)
        if present is None or present[t - 1].all():
            if traffic not in known:
                known[traffic] = price(self, users, listeners)
            return known[traffic]
        here = present[t - 1]
        if not here.any():
            return 0.0
        heard = None if listeners is None else listeners.among(here)
        return price(self.among(here), int(here.sum()), heard)

    def arrived(
        self,
        traffic: Traffic,
        users: int,
        share: float,
        audience: Audience | Labels | None = None,
    ) -> float:
        """When the models of a ``share`` of the users have arrived, in expectation.

        A deadline of this length leaves out the others on average. Computing times are those of
        :data:`DRAWS` rounds, the same ones for every question.
        """
        place = _waited_for(share, users) - 1
        drawn = np.random.default_rng(0).exponential(size=(DRAWS if self.mean_delay else 1, users))
        computing = self.t_min + self.mean_delay * drawn
        ready = self.downlink(traffic.down, users, audience) + traffic.work * computing
        sending = self.upload_times(traffic.up, users)
        times = [np.partition(self._sent(each, sending, math.inf), place)[place] for each in ready]
        return min(float(np.mean(times)), self.round_time(traffic, users, audience))


@dataclass(frozen=True)
class WirelessSystem(System):
    """The paper's system, everything in units of T_dl, the time of one broadcast.

    ρ = T_ul / T_dl; computing takes T_min and an exponential delay with mean 1/μ.
    """

    rho: float
    t_min: float
    mean_delay: float
    unit: ClassVar[str] = "T_dl"

    def __post_init__(self) -> None:
        check_positive("rho, the uplink's time over the downlink's,", self.rho)
        check_not_negative(self, "t_min", "mean_delay")

    def downlink(
        self, models: float, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """One T_dl for each broadcast, whoever listens."""
        return models

    def uplink(self, models: float, users: int) -> float:
        """ρ T_dl for each model."""
        return self.rho * models

    def arrived(
        self,
        traffic: Traffic,
        users: int,
        share: float,
        audience: Audience | Labels | None = None,
    ) -> float:
        """As by draws, exactly: E[T_(r)] = T_min + (H_m − H_{m−r}) / μ for the r-th of m users."""
        waited = _waited_for(share, users)
        delays = harmonic(users) - harmonic(users - waited)
        sending = self.downlink(traffic.down, users, audience) + self.uplink(traffic.up, users)
        return sending + traffic.work * (self.t_min + self.mean_delay * delays)

    def compressed(self, down: float, up: float) -> WirelessSystem:
        """T_dl stays the time of one broadcast of a whole model; shorter messages take less."""
        if down == up == 1:
            return self
        return CompressedSystem(self.rho, self.t_min, self.mean_delay, down, up)


@dataclass(frozen=True)
class CompressedSystem(WirelessSystem):
    """The paper's system with messages of other sizes than the model's."""

    down_factor: float = 1.0
    up_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("the bytes of a message down over the model's", self.down_factor)
        check_positive("the bytes of a message up over the model's", self.up_factor)

    def downlink(
        self, models: float, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """As many T_dl as the messages have bytes of whole models."""
        return self.down_factor * models

    def uplink(self, models: float, users: int) -> float:
        """ρ T_dl for each whole model's bytes."""
        return self.rho * self.up_factor * models


#: The three systems of the paper (fig. "accuracy against time").
SYSTEMS = {
    "slow-uplink": WirelessSystem(rho=4, t_min=1, mean_delay=1),
    "fast-uplink": WirelessSystem(rho=2, t_min=1, mean_delay=0),
    "wired": WirelessSystem(rho=1, t_min=1, mean_delay=0),
}


def _waited_for(share: float, users: int) -> int:
    """How many of the users a share of them are; at least one."""
    return max(math.ceil(share * _counted(users) - 1e-9), 1)


def _counted(users: int) -> int:
    if users < 1:
        raise UcflError(f"a federation has at least one user, not {users}.")
    return users
