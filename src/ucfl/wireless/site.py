"""Kinds of cells before anybody is in them, and cells of users whose SNRs were measured."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ucfl.errors import UcflError, unreadable
from ucfl.options import LARGEST_SEED, check_fields
from ucfl.units import DECIBEL_MILLIWATTS, DECIBELS, FREQUENCY, LENGTH, SHARE, Quantity
from ucfl.wireless.cell import HIGHEST_SNR, Floats, RadioCell, settings_of
from ucfl.wireless.channel import ENVIRONMENTS, Environment
from ucfl.wireless.placement import Draws, Placement, place
from ucfl.wireless.settings import (
    Again,
    Errors,
    Margin,
    RadioSettings,
    Sending,
    UserIdle,
    UserReceiving,
    UserSending,
)

#: Thermal noise at 290 K, in dBm per hertz.
NOISE_DENSITY = -174.0
#: Watts that a phone draws while it sends: at 0 dBm, and more for each watt that it radiates.
#: TR 38.840, clause 8.1 has 250 units at 0 dBm and 700 at 23 dBm (and 300 while it receives, 45 in
#: micro sleep); a unit is taken as 2 mW, so that sending at 23 dBm draws 1.4 W.
PHONE_AT_REST, PHONE_PER_WATT = 0.5, 4.5

#: TR 38.901, table 7.4.1-1: the height of an antenna outdoors, in metres.
LOWEST_OUTDOORS = 1.5

Kind = Literal["indoor-office", "urban-micro", "urban-macro"]
Radius = Annotated[float, Quantity(LENGTH, 1, 5000, "radius of the cell")]
Nearest = Annotated[float, Quantity(LENGTH, 1, 5000, "distance of the nearest user")]
Carrier = Annotated[float, Quantity(FREQUENCY, 0.5e9, 100e9, "carrier frequency")]
BasePower = Annotated[
    float, Quantity(DECIBEL_MILLIWATTS, -10, 60, "sent by the base station", plain=True)
]
UserPower = Annotated[float, Quantity(DECIBEL_MILLIWATTS, -40, 35, "sent by a user", plain=True)]
BaseHeight = Annotated[float, Quantity(LENGTH, 2, 150, "height of the base station's antenna")]
UserHeight = Annotated[float, Quantity(LENGTH, 1, 22.5, "height of users outdoors")]
BaseNoise = Annotated[
    float, Quantity(DECIBELS, 0, 20, "noise figure of the base station", plain=True)
]
UserNoise = Annotated[float, Quantity(DECIBELS, 0, 20, "noise figure of users", plain=True)]
Indoors = Annotated[float, Quantity(SHARE, 0, 1, "users inside buildings", plain=True)]
HighLoss = Annotated[
    float, Quantity(SHARE, 0, 1, "buildings of the high-loss model, others low", plain=True)
]
Amplifier = Annotated[float, Field(ge=1, le=100)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


@dataclass(frozen=True, kw_only=True)
class Site(RadioSettings):
    """A kind of cell, before anybody is in it: powers, frequency, surroundings, radius.

    Users are spread evenly over the ring between the nearest distance and the radius; line of
    sight, walls and shadowing are drawn for each by 3GPP TR 38.901, clause 7.4
    (:mod:`ucfl.wireless.channel`), or by ``channel=sionna``, with fast fading (``ucfl[radio]``).
    """

    surroundings: Kind
    radius: Radius
    carrier: Carrier = 3.5e9
    base_dbm: BasePower
    base_height: BaseHeight
    user_dbm: UserPower = 23.0
    user_height: UserHeight = 1.5
    base_noise_db: BaseNoise = 5.0
    user_noise_db: UserNoise = 7.0
    nearest: Nearest = 10.0
    indoor: Indoors = 0.8
    high_loss: HighLoss = 0.2
    shadowing: bool = True
    channel: Literal["formulas", "sionna"] = "formulas"
    #: Watts that the base station draws for each watt that it sends.
    base_amplifier: Amplifier = 1.0
    block_error: Errors = 0.1
    retransmission_error: Again = 0.01
    interference_db: Margin = 3.0
    receiving_watts: UserReceiving = 0.6
    idle_watts: UserIdle = 0.09
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self, self.surroundings)
        here = self.environment
        if not self.radius > self.nearest:
            raise UcflError(
                f"the cell's radius must exceed the nearest user's {self.nearest:g} m, "
                f"not be {self.radius:g} m."
            )
        if self.nearest < here.nearest or self.radius > here.farthest:
            raise UcflError(
                f"path loss of {self.surroundings} is known from {here.nearest:g} m to "
                f"{here.farthest:g} m, not from {self.nearest:g} m to {self.radius:g} m."
            )
        if self.surroundings != "indoor-office" and self.user_height < LOWEST_OUTDOORS:
            raise UcflError(
                f"path loss of {self.surroundings} is known for users from {LOWEST_OUTDOORS:g} m "
                f"up, not at {self.user_height:g} m."
            )
        if not self.base_height > self.user_height:
            raise UcflError(
                f"a base station {self.base_height:g} m high is not above its users at "
                f"{self.user_height:g} m."
            )

    @property
    def environment(self) -> Environment:
        """The formulas of its surroundings."""
        return ENVIRONMENTS[self.surroundings]

    def distances(self, users: int) -> Floats:
        """Users placed uniformly over the ring between the nearest distance and the radius."""
        where = Draws(self.seed, users).uniform(0)
        return np.sqrt(self.nearest**2 + where * (self.radius**2 - self.nearest**2))

    def placed(self, users: int, distances: Floats | None = None) -> Placement:
        """Users at ``distances`` metres, or placed by the seed, with all that is drawn for them."""
        where = self.distances(users) if distances is None else np.asarray(distances, dtype=float)
        if not (np.isfinite(where) & (where > 0)).all():
            raise UcflError("distances to the base station are metres above 0.")
        return place(
            self.environment,
            Draws(self.seed, users),
            where,
            carrier=self.carrier,
            base_height=self.base_height,
            user_height=self.user_height,
            indoor_share=self.indoor,
            high_loss_share=self.high_loss,
            shadowed=self.shadowing,
        )

    def snrs(self, users: int, distances: Floats | None = None) -> tuple[Floats, Floats]:
        """[m] each: dB over the whole band, down and up, before interference."""
        noise = NOISE_DENSITY + 10 * math.log10(self.bandwidth)
        down = self.base_dbm - noise - self.user_noise_db
        up = self.user_dbm - noise - self.base_noise_db
        placed = self.placed(users, distances)
        if self.channel == "formulas":
            return down - placed.loss, up - placed.loss
        from ucfl.wireless.sionna import effective_snr_db, gains  # an extra, and slow to import

        found = gains(self, placed)
        return effective_snr_db(down, found), effective_snr_db(up, found)

    def serving(self, users: int, model_bytes: float, distances: Floats | None = None) -> RadioCell:
        """The cell with users in it: at ``distances`` metres, or placed by the seed."""
        down, up = self.snrs(users, distances)
        return RadioCell(
            **settings_of(self),
            # Beyond that, a receiver is as good as with it.
            snr_down_db=np.minimum(down, HIGHEST_SNR),
            snr_up_db=np.minimum(up, HIGHEST_SNR),
            model_bytes=model_bytes,
            base_watts=self.base_amplifier * _watts(self.base_dbm),
            user_watts=PHONE_AT_REST + PHONE_PER_WATT * _watts(self.user_dbm),
        )


def _watts(dbm: float) -> float:
    return float(10 ** (dbm / 10 - 3))


@dataclass(frozen=True, kw_only=True)
class MeasuredCell(RadioSettings):
    """A cell of users whose SNRs are known: ``file`` has a row for each, in the users' order.

    It is a CSV file with the columns ``snr_down_db`` and ``snr_up_db``, over the whole bandwidth;
    other columns are left alone.
    """

    file: str = ""
    base_watts: Sending = 40.0
    user_watts: UserSending = 1.4
    block_error: Errors = 0.1
    retransmission_error: Again = 0.01
    receiving_watts: UserReceiving = 0.6
    idle_watts: UserIdle = 0.09

    def __post_init__(self) -> None:
        check_fields(self, "measured-cell")

    def serving(self, users: int, model_bytes: float) -> RadioCell:
        """The cell with the file's users, who must be as many."""
        down, up = self.ratios()
        cell = RadioCell(
            **settings_of(self),
            snr_down_db=down,
            snr_up_db=up,
            model_bytes=model_bytes,
            base_watts=self.base_watts,
            user_watts=self.user_watts,
        )
        return cell.serving(users, model_bytes)

    def ratios(self) -> tuple[Floats, Floats]:
        """Each user's SNR in dB, down and up."""
        if not self.file:
            raise UcflError(
                "measured-cell needs its users' SNRs: write measured-cell:file=FILE.csv, with the "
                "columns snr_down_db and snr_up_db and a row for each user."
            )
        path, advice = Path(self.file), "give a CSV file with snr_down_db and snr_up_db."
        try:
            with path.open(newline="", encoding="utf-8-sig") as opened:
                rows = list(csv.DictReader(opened, skipinitialspace=True))
            found = [[float(row[name]) for row in rows] for name in ("snr_down_db", "snr_up_db")]
        except KeyError as error:
            raise UcflError(f"{path} has no column {error}; {advice}") from None
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise unreadable(path, error, advice) from error
        if not rows:
            raise UcflError(f"{path} has no user; {advice}")
        return np.array(found[0]), np.array(found[1])


#: Sites by name. Heights and shares of indoor users: TR 38.901, tables 7.2-1 and 7.2-2; powers,
#: noise figures and the share of high-loss buildings: ITU-R M.2412-0, sec. 8.4 (20 MHz). Radii:
#: half the inter-site distances there, rounded. Amplifiers: Δ_p of pico, micro and macro stations
#: in Auer et al., "How much energy is needed to run a wireless network?", IEEE Wireless
#: Communications 18(5), 2011, table 2; their standing powers are 6.8, 56 and 130 W.
SITES = {
    "indoor-office": Site(
        surroundings="indoor-office",
        radius=30,
        base_dbm=24,
        base_height=3,
        user_height=1.0,
        nearest=1,
        indoor=0.0,
        base_amplifier=4.0,
    ),
    "urban-micro": Site(
        surroundings="urban-micro", radius=100, base_dbm=33, base_height=10, base_amplifier=2.6
    ),
    "urban-macro": Site(
        surroundings="urban-macro",
        radius=250,
        base_dbm=44,
        base_height=25,
        nearest=35,
        base_amplifier=4.7,
    ),
}
MEASURED = {"measured-cell": MeasuredCell()}
