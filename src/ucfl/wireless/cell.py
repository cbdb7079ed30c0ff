"""A real radio cell: bandwidth, signal-to-noise ratios and model size give seconds and joules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.wireless.audience import Audience, Labels
from ucfl.wireless.checks import check_not_negative, check_positive
from ucfl.wireless.system import System
from ucfl.wireless.traffic import Traffic

Floats = NDArray[np.float64]

#: b/s/Hz of the highest modulation and code rate (256-QAM, 948/1024; 3GPP TS 38.214, CQI table 2).
HIGHEST_EFFICIENCY = 8 * 948 / 1024
#: Thermal noise at 290 K, in dBm per hertz.
NOISE_DENSITY = -174.0


@dataclass(frozen=True, eq=False)
class RadioCell(System):
    """Users of one base station, each with its signal-to-noise ratio over the whole band.

    A link carries B · min(log₂(1 + SNR/Γ), highest) bit/s: Shannon's rate with a gap Γ, up to the
    highest modulation. Streams go down one after another, each at the rate of its slowest
    listener. On the uplink, users either share the band in equal parts at the same time
    (``ofdma``: a user's power in a part B/m lifts its SNR m times) or take turns on all of it
    (``sequential``). Times are in seconds.
    """

    bandwidth: float
    snr_down_db: Floats
    snr_up_db: Floats
    model_bytes: int
    uplink_sharing: Literal["ofdma", "sequential"] = "ofdma"
    gap_db: float = 3.0
    t_min: float = 1.0
    mean_delay: float = 0.0
    base_watts: float = 40.0
    user_watts: float = 0.2
    computing_watts: float = 2.0
    unit: ClassVar[str] = "s"

    def __post_init__(self) -> None:
        check_positive("the bandwidth in Hz", self.bandwidth)
        check_positive("the model's size in bytes", self.model_bytes)
        check_not_negative(self, "gap_db", "t_min", "mean_delay")
        check_not_negative(self, "base_watts", "user_watts", "computing_watts")
        if self.uplink_sharing not in ("ofdma", "sequential"):
            raise UcflError(
                f"users share the uplink by ofdma or sequential, not {self.uplink_sharing!r}."
            )
        if np.shape(self.snr_down_db) != np.shape(self.snr_up_db) or np.ndim(self.snr_up_db) != 1:
            raise UcflError("give every user one downlink and one uplink SNR.")
        for direction, rates in (("downlink", self.down_rates), ("uplink", self.up_rates)):
            dead = np.flatnonzero(~(np.isfinite(rates) & (rates >= 1)))
            if len(dead):
                ratios = self.snr_down_db if direction == "downlink" else self.snr_up_db
                raise UcflError(
                    f"user {dead[0]} gets no rate on the {direction}: its SNR is "
                    f"{ratios[dead[0]]:g} dB, too low for a single bit per second."
                )

    @property
    def down_rates(self) -> Floats:
        """Bit/s that each user could receive."""
        return self.bandwidth * self._efficiency(self.snr_down_db)

    @property
    def up_rates(self) -> Floats:
        """Bit/s at which each user sends, in its part of the band or in its turn."""
        if self.uplink_sharing == "sequential":
            return self.bandwidth * self._efficiency(self.snr_up_db)
        m = len(self.snr_up_db)
        return self.bandwidth / m * self._efficiency(self.snr_up_db + 10 * math.log10(m))

    def downlink(
        self, models: float, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """Σ over parts and their streams of bits / (the slowest listener's rate).

        Without an ``audience``, or with that of another number of models, everyone listens to all.
        """
        self._check_users(users)
        listeners = Audience.of(audience)
        if listeners is None or not listeners.fits(models):
            return models * self._bits / float(self.down_rates.min())
        sent = sum(share * self._broadcasts(labels) for share, labels in listeners.parts)
        return sent * (models / listeners.models)  # 1, unless parts are compressed

    def _broadcasts(self, labels: Labels) -> float:
        """Time of one model for each stream."""
        slowest = np.full(int(labels.max()) + 1, np.inf)
        np.minimum.at(slowest, labels, self.down_rates)
        return float((self._bits / slowest).sum())

    def uplink(self, models: float, users: int) -> float:
        """The slowest user's time, or the sum of everyone's turns."""
        times = self.upload_times(models, users)
        return float(times.max() if self.uplink_sharing == "ofdma" else times.sum())

    def joules(
        self, traffic: Traffic, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """Base station sending, users sending, users computing; listening and waiting are free."""
        down = self.base_watts * self.downlink(traffic.down, users, audience)
        up = self.user_watts * float(self.upload_times(traffic.up, users).sum())
        each = self.t_min + self.mean_delay
        return down + up + self.computing_watts * traffic.work * users * each

    def serving(self, users: int, model_bytes: int) -> RadioCell:
        """The cell itself, if it has these users."""
        self._check_users(users)
        return self

    def among(self, present: NDArray[np.bool_]) -> RadioCell:
        """The cell with some of its users alone."""
        return replace(
            self, snr_down_db=self.snr_down_db[present], snr_up_db=self.snr_up_db[present]
        )

    def upload_times(self, models: float, users: int) -> Floats:
        """[m]: how long each user sends ``models`` models, in its part of the band or its turn."""
        self._check_users(users)
        return models * self._bits / self.up_rates

    def _sent(self, ready: Floats, sending: Floats, deadline: float) -> Floats:
        """At the same time; or in turns, in the order in which users are ready."""
        if self.uplink_sharing == "ofdma":
            return ready + sending
        free, ends = 0.0, np.empty_like(ready)
        for user in np.argsort(ready, kind="stable"):
            ends[user] = max(ready[user], free) + sending[user]
            if ends[user] <= deadline:
                free = float(ends[user])
        return ends

    def _check_users(self, users: int) -> None:
        if users != len(self.snr_up_db):
            raise UcflError(f"the cell has {len(self.snr_up_db)} users, the federation {users}.")

    @property
    def _bits(self) -> float:
        return 8.0 * self.model_bytes

    def _efficiency(self, snr_db: Floats) -> Floats:
        signal = 10 ** ((np.asarray(snr_db, dtype=np.float64) - self.gap_db) / 10)
        return np.minimum(np.log1p(signal) / math.log(2), HIGHEST_EFFICIENCY)


@dataclass(frozen=True)
class Site:
    """A kind of cell, before anybody is in it: powers, frequency, path loss, radius.

    The path loss in dB over d metres at f GHz is max(LOS, NLOS) with a + b log₁₀ d + c log₁₀ f for
    each (3GPP TR 38.901, table 7.4.1-1; line of sight up to the breakpoint distance), and normal
    shadowing of ``shadowing_db``.
    """

    radius: float
    carrier_ghz: float
    bandwidth: float
    base_dbm: float
    base_height: float
    line_of_sight: tuple[float, float, float]
    obstructed: tuple[float, float, float]
    shadowing_db: float
    user_dbm: float = 23.0
    user_height: float = 1.5
    base_noise_db: float = 5.0
    user_noise_db: float = 7.0
    nearest: float = 10.0
    uplink_sharing: Literal["ofdma", "sequential"] = "ofdma"
    gap_db: float = 3.0
    t_min: float = 1.0
    mean_delay: float = 0.0
    computing_watts: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("carrier_ghz", "bandwidth", "base_height", "user_height", "nearest"):
            check_positive(name, getattr(self, name))
        if not (math.isfinite(self.radius) and self.radius > self.nearest):
            raise UcflError(
                f"the cell's radius must exceed the nearest user's {self.nearest:g} m, "
                f"not be {self.radius:g} m."
            )

    def path_loss(self, distance: Floats) -> Floats:
        """dB over each horizontal distance in metres, before shadowing."""
        distance = np.asarray(distance, dtype=np.float64)
        if not (np.isfinite(distance) & (distance > 0)).all():
            raise UcflError("distances to the base station are metres above 0.")
        slant = np.hypot(distance, self.base_height - self.user_height)

        def loss(a: float, b: float, c: float) -> Floats:
            return a + b * np.log10(slant) + c * math.log10(self.carrier_ghz)

        return np.maximum(loss(*self.line_of_sight), loss(*self.obstructed))

    def distances(self, users: int) -> Floats:
        """Users placed uniformly over the ring between the nearest distance and the radius."""
        where = np.random.default_rng([self.seed, 0]).random(users)
        return np.sqrt(self.nearest**2 + where * (self.radius**2 - self.nearest**2))

    def serving(self, users: int, model_bytes: int, distances: Floats | None = None) -> RadioCell:
        """The cell with users in it: at ``distances`` metres, or placed by the seed."""
        where = self.distances(users) if distances is None else np.asarray(distances)
        shadow = self.shadowing_db * np.random.default_rng([self.seed, 1]).normal(size=users)
        loss = self.path_loss(where) + shadow
        noise = NOISE_DENSITY + 10 * math.log10(self.bandwidth)
        return RadioCell(
            bandwidth=self.bandwidth,
            snr_down_db=self.base_dbm - loss - noise - self.user_noise_db,
            snr_up_db=self.user_dbm - loss - noise - self.base_noise_db,
            model_bytes=model_bytes,
            uplink_sharing=self.uplink_sharing,
            gap_db=self.gap_db,
            t_min=self.t_min,
            mean_delay=self.mean_delay,
            base_watts=10 ** (self.base_dbm / 10 - 3),
            user_watts=10 ** (self.user_dbm / 10 - 3),
            computing_watts=self.computing_watts,
        )


#: Sites by name. Path loss and shadowing: 3GPP TR 38.901, tables 7.4.1-1 (InH-Office, UMi-Street
#: Canyon, UMa); heights: its tables 7.2-1 and 7.2-2; powers and noise figures: ITU-R M.2412-0,
#: sec. 8.4 (20 MHz). Radii: half the inter-site distances there, rounded.
SITES = {
    "indoor-office": Site(
        radius=30,
        carrier_ghz=3.5,
        bandwidth=20e6,
        base_dbm=24,
        base_height=3,
        user_height=1.0,
        nearest=1,
        line_of_sight=(32.4, 17.3, 20.0),
        obstructed=(17.3, 38.3, 24.9),
        shadowing_db=8.03,
    ),
    "urban-micro": Site(
        radius=100,
        carrier_ghz=3.5,
        bandwidth=20e6,
        base_dbm=33,
        base_height=10,
        line_of_sight=(32.4, 21.0, 20.0),
        obstructed=(22.4, 35.3, 21.3),
        shadowing_db=7.82,
    ),
    "urban-macro": Site(
        radius=250,
        carrier_ghz=3.5,
        bandwidth=20e6,
        base_dbm=44,
        base_height=25,
        line_of_sight=(28.0, 22.0, 20.0),
        obstructed=(13.54, 39.08, 20.0),
        shadowing_db=6.0,
        nearest=35,
    ),
}
