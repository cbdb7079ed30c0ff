"""What a radio cell and a site have in common: band, link, streams, computing and powers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ucfl.units import DECIBELS, FREQUENCY, POWER, SHARE, TIME, Quantity

#: How an SNR becomes a rate; ``sionna`` reads simulated block errors (``ucfl[radio]``).
Rate = Literal["shannon", "cqi-table-1", "cqi-table-2", "cqi-table-3", "sionna"]

Bandwidth = Annotated[float, Quantity(FREQUENCY, 1e3, 10e9, "bandwidth, shared by all users")]
Gap = Annotated[
    float, Quantity(DECIBELS, 0, 30, "gap of a real receiver to Shannon's rate", plain=True)
]
Margin = Annotated[
    float,
    Quantity(DECIBELS, 0, 40, "rise of the noise by neighbouring cells' interference", plain=True),
]
Gain = Annotated[
    float,
    Quantity(DECIBELS, 0, 40, "gain of a beam to one listener over a broadcast", plain=True),
]
Seconds = Annotated[float, Quantity(TIME, 0, 1e7, "time that every user computes in a round")]
Delay = Annotated[float, Quantity(TIME, 0, 1e7, "mean of the random time on top of it")]
Errors = Annotated[
    float, Quantity(SHARE, 0, 0.9, "blocks that fail at the first transmission", plain=True)
]
Again = Annotated[
    float, Quantity(SHARE, 0, 0.9, "failed blocks that fail again, copies added up", plain=True)
]
Coverage = Annotated[
    float,
    Quantity(
        SHARE,
        0.01,
        1,
        "listeners that a broadcast's rate is chosen for; the others get it one by one",
        plain=True,
    ),
]
Sending = Annotated[float, Quantity(POWER, 0, 1e6, "drawn by the base station while it sends")]
Standing = Annotated[float, Quantity(POWER, 0, 1e6, "drawn by the base station all the time")]
UserSending = Annotated[float, Quantity(POWER, 0, 1e4, "drawn by a user while it sends")]
UserReceiving = Annotated[
    float, Quantity(POWER, 0, 1e4, "drawn by a user while it hears its streams")
]
UserIdle = Annotated[float, Quantity(POWER, 0, 1e4, "drawn by a user while it waits")]
UserComputing = Annotated[float, Quantity(POWER, 0, 1e4, "drawn by a user while it computes")]
Transmissions = Annotated[int, Field(ge=1, le=16)]


@dataclass(frozen=True, kw_only=True)
class RadioSettings:
    """The settings of a cell but for who is in it; numbers are in hertz, seconds, dB and watts."""

    bandwidth: Bandwidth = 20e6
    uplink_sharing: Literal["ofdma", "sequential"] = "ofdma"
    rate: Rate = "shannon"
    gap_db: Gap = 3.0
    block_error: Errors = 0.0
    retransmission_error: Again = 0.0
    #: Of a block by HARQ, the first one included.
    transmissions: Transmissions = 4
    interference_db: Margin = 0.0
    unicast_gain_db: Gain = 0.0
    coverage: Coverage = 1.0
    t_min: Seconds = 1.0
    mean_delay: Delay = 0.0
    base_idle_watts: Standing = 0.0
    receiving_watts: UserReceiving = 0.0
    idle_watts: UserIdle = 0.0
    computing_watts: UserComputing = 2.0
