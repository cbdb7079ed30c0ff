"""A real radio cell: bandwidth, signal-to-noise ratios and model size give seconds and joules."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError
from ucfl.options import typed
from ucfl.wireless.audience import Audience, Labels
from ucfl.wireless.checks import check_positive
from ucfl.wireless.link import Steps, cqi_steps, shannon_efficiency, transmissions
from ucfl.wireless.settings import RadioSettings, Sending, UserSending
from ucfl.wireless.system import System
from ucfl.wireless.traffic import Traffic

Floats = NDArray[np.float64]

#: Hz: the least of a band that a user sends in (TS 38.211).
SUBCARRIER = 15e3
#: dB above which no receiver works: an SNR like this is a ratio that was not converted.
HIGHEST_SNR = 80.0


@dataclass(frozen=True, eq=False, kw_only=True)
class RadioCell(RadioSettings, System):
    """Users of one base station, each with its signal-to-noise ratio over the whole band.

    A link carries B · η(SNR) bit/s: Shannon's rate with a gap, up to the highest modulation, or the
    steps of a table (``rate``); every block is sent E times in expectation
    (:func:`~ucfl.wireless.link.transmissions`). Streams go down one after another, each at the
    rate of its slowest listener, or of the slowest of a share ``coverage`` of them, after which the
    others get it one by one. On the uplink, users either share the band in equal parts at the same
    time (``ofdma``: a user's power in a part B/m lifts its SNR m times) or take turns on all of it
    (``sequential``); who gets no rate in that uses less of the band. Times are in seconds.

    ``down_factor`` and ``up_factor`` are the bytes of a message over those of the model
    (compression).
    """

    snr_down_db: Floats
    snr_up_db: Floats
    model_bytes: float
    base_watts: Sending = 40.0
    user_watts: UserSending = 0.2
    down_factor: float = 1.0
    up_factor: float = 1.0
    unit: ClassVar[str] = "s"

    def __post_init__(self) -> None:
        for name, value in typed(RadioSettings, "the cell", settings_of(self)).items():
            object.__setattr__(self, name, value)
        check_positive("the model's size in bytes", self.model_bytes)
        check_positive("the bytes of a message down over the model's", self.down_factor)
        check_positive("the bytes of a message up over the model's", self.up_factor)
        if np.shape(self.snr_down_db) != np.shape(self.snr_up_db) or np.ndim(self.snr_up_db) != 1:
            raise UcflError("give every user one downlink and one uplink SNR.")
        _check_snrs("downlink", self.snr_down_db, self.down_rates)
        _check_snrs("uplink", self.snr_up_db, self.up_rates)

    @cached_property
    def down_rates(self) -> Floats:
        """Bit/s that each user could receive of a broadcast."""
        return self.bandwidth * self._efficiency(self.snr_down_db)

    @cached_property
    def unicast_rates(self) -> Floats:
        """Bit/s that each user could receive alone."""
        return self.bandwidth * self._efficiency(self.snr_down_db + self.unicast_gain_db)

    @cached_property
    def up_rates(self) -> Floats:
        """Bit/s at which each user sends, in its part of the band or in its turn."""
        parts = 1 if self.uplink_sharing == "sequential" else len(self.snr_up_db)
        rates = self._sent_in(parts, self.snr_up_db)
        # Who is too weak for its part puts its power into a half of it, a quarter, and so on.
        while (weak := rates == 0).any() and self.bandwidth / (2 * parts) >= SUBCARRIER:
            parts *= 2
            rates[weak] = self._sent_in(parts, self.snr_up_db[weak])
        return rates

    def _sent_in(self, parts: int, snr_db: Floats) -> Floats:
        """Bit/s of users with all their power in one of so many parts of the band."""
        lifted = np.asarray(snr_db, dtype=np.float64) + 10 * math.log10(parts)
        return np.asarray(self.bandwidth / parts * self._efficiency(lifted))

    def downlink(
        self, models: float, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """Σ over parts and their streams of bits / rate, and what is repaired one by one.

        Without an ``audience``, or with that of another number of models, everyone listens to all.
        """
        return self._broadcasts(models, users, audience)[0]

    def listening(
        self, models: float, users: int, audience: Audience | Labels | None = None
    ) -> Floats:
        """[m]: for how long each user hears something that is for it."""
        return self._broadcasts(models, users, audience)[1]

    def _broadcasts(
        self, models: float, users: int, audience: Audience | Labels | None
    ) -> tuple[float, Floats]:
        self._check_users(users)
        listeners = Audience.of(audience)
        if listeners is None or not listeners.fits(models):
            listeners = Audience(((models, np.zeros(users, dtype=np.int64)),))
        time, heard = 0.0, np.zeros(users)
        for share, labels in listeners.parts:
            on_air, each = self._streams(labels)
            time, heard = time + share * on_air, heard + share * each
        # 1, unless parts are compressed.
        scale = models / listeners.models if listeners.models else 1.0
        return scale * time, scale * heard

    def _streams(self, labels: Labels) -> tuple[float, Floats]:
        """A model for each stream: its time on air, and [m] how long each user listens.

        A stream's rate is that of the slowest among its fastest ⌈coverage · listeners⌉; one that
        has a single listener is a unicast.
        """
        listeners = np.bincount(labels)
        if (empty := np.flatnonzero(listeners == 0)).size:
            raise UcflError(
                f"stream {empty[0]} has no listener; number the streams that are heard from 0 on."
            )
        rates = np.where(listeners[labels] == 1, self.unicast_rates, self.down_rates)
        order = np.lexsort((-rates, labels))
        rank = np.empty(len(labels))
        rank[order] = np.arange(len(labels)) - (np.cumsum(listeners) - listeners)[labels[order]]
        reached = rank < np.ceil(self.coverage * listeners - 1e-9)[labels]
        slowest = np.full(len(listeners), np.inf)
        np.minimum.at(slowest, labels[reached], rates[reached])
        sent = self._bits * self.down_factor / slowest
        repair = np.where(reached, 0.0, self._bits * self.down_factor / self.unicast_rates)
        return float(sent.sum() + repair.sum()), np.where(reached, sent[labels], repair)

    def uplink(self, models: float, users: int) -> float:
        """The slowest user's time, or the sum of everyone's turns."""
        times = self.upload_times(models, users)
        return float(times.max() if self.uplink_sharing == "ofdma" else times.sum())

    def joules(
        self, traffic: Traffic, users: int, audience: Audience | Labels | None = None
    ) -> float:
        """The base station sends and stands; users receive, compute, send, and wait for the rest.

        A user computes for T_min + 1/μ in expectation; the slowest decides how long others wait.
        """
        down, heard = self._broadcasts(traffic.down, users, audience)
        up, busy = self.upload_times(traffic.up, users), traffic.work * self._computes
        lasts = self.round_time(traffic, users, audience)
        waiting = np.maximum(lasts - heard - up - busy, 0)
        base = self.base_watts * down + self.base_idle_watts * lasts
        each = self.receiving_watts * heard + self.user_watts * up + self.idle_watts * waiting
        return base + float(each.sum()) + users * self.computing_watts * busy

    @property
    def _computes(self) -> float:
        return self.t_min + self.mean_delay

    def serving(self, users: int, model_bytes: float) -> RadioCell:
        """The cell itself, if it has these users."""
        self._check_users(users)
        return self

    def compressed(self, down: float, up: float) -> RadioCell:
        """The cell with messages of so many bytes for each byte of the model."""
        return replace(self, down_factor=down, up_factor=up)

    def among(self, present: NDArray[np.bool_]) -> RadioCell:
        """The cell with some of its users alone."""
        return replace(
            self, snr_down_db=self.snr_down_db[present], snr_up_db=self.snr_up_db[present]
        )

    def upload_times(self, models: float, users: int) -> Floats:
        """[m]: how long each user sends ``models`` models, in its part of the band or its turn."""
        self._check_users(users)
        return models * self._bits * self.up_factor / self.up_rates

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

    @cached_property
    def _bits(self) -> float:
        """Bits that are sent for a model, blocks that are sent again included."""
        again = transmissions(self.block_error, self.retransmission_error, self.transmissions)
        return 8.0 * self.model_bytes * again

    def _efficiency(self, snr_db: Floats) -> Floats:
        snr = np.asarray(snr_db, dtype=np.float64) - self.interference_db
        if self.rate == "shannon":
            return shannon_efficiency(snr, self.gap_db)
        return self._steps().efficiency(snr)

    def _steps(self) -> Steps:
        if self.rate == "sionna":
            from ucfl.wireless.sionna import simulated_steps  # an extra, and slow to import

            return simulated_steps(max(self.block_error, 0.01))
        return cqi_steps(self.rate, self.gap_db)


def settings_of(owner: RadioSettings) -> dict[str, Any]:
    """The settings that a cell takes over from a site."""
    return {field.name: getattr(owner, field.name) for field in fields(RadioSettings)}


def _check_snrs(direction: str, ratios: Floats, rates: Floats) -> None:
    """Raise where a user has no rate, or an SNR that cannot be one in dB."""
    high = np.flatnonzero(np.asarray(ratios) > HIGHEST_SNR)
    if len(high):
        ratio = float(ratios[high[0]])
        raise UcflError(
            f"user {high[0]} has {ratio:g} dB on the {direction}, more than any receiver sees; if "
            f"that is a ratio of powers, give 10 log10 of it, {10 * math.log10(ratio):.3g} dB."
        )
    dead = np.flatnonzero(~(np.isfinite(rates) & (rates >= 1)))
    if len(dead):
        raise UcflError(
            f"user {dead[0]} gets no rate on the {direction}: its SNR is {ratios[dead[0]]:g} dB, "
            "too low for a single bit per second; leave it out, or give it a better one (more "
            "power, a smaller radius, rate=shannon)."
        )
