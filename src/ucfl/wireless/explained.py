"""What each option of a network means, with its value and bounds: ``ucfl systems NAME``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from ucfl.units import quantities
from ucfl.wireless.site import MeasuredCell, Site
from ucfl.wireless.system import WirelessSystem

#: Options that are no quantity; of the paper's system, times are in units of one broadcast.
WORDS = {
    "uplink_sharing": "everyone in a part of the band at the same time, or in turns on all of it",
    "rate": "how an SNR becomes bit/s: Shannon with a gap, steps of TS 38.214, Sionna's tables",
    "transmissions": "of a block by HARQ, the first included, before it starts anew",
    "surroundings": "the formulas of TR 38.901: InH-Office, UMi-Street Canyon, UMa",
    "shadowing": "whether shadowing and walls vary between users",
    "channel": "what draws users' channels: our formulas, or Sionna, with fast fading",
    "base_amplifier": "watts that the base station draws for each watt that it sends",
    "seed": "of users' places and channels",
    "file": "CSV of users' SNRs over the whole band: columns snr_down_db and snr_up_db",
    "rho": "time of an upload over that of a broadcast",
}
PAPER = {
    "t_min": "time that every user computes in a round, in broadcasts",
    "mean_delay": "mean of the random time on top of it, in broadcasts",
}


@dataclass(frozen=True)
class Explained:
    """One option: how it is typed, what it is now, what it may be, what it means."""

    option: str
    value: str
    allowed: str
    words: str


def explained(network: WirelessSystem | Site | MeasuredCell) -> list[Explained]:
    """Every option of a network, in the order of its class."""
    kind = type(network)
    hints, known = get_type_hints(kind, include_extras=True), quantities(kind)
    words = WORDS | (PAPER if isinstance(network, WirelessSystem) else {})
    rows = []
    for field in dataclasses.fields(network):
        value = getattr(network, field.name)
        if (quantity := known.get(field.name)) is not None:
            allowed = f"{quantity.text(quantity.low)} to {quantity.text(quantity.high)}"
            row = Explained(field.name, quantity.text(value), allowed, quantity.words)
        else:
            allowed = _allowed(hints[field.name], value)
            row = Explained(field.name, _text(value), allowed, words[field.name])
        rows.append(row)
    return rows


def summary(network: WirelessSystem | Site | MeasuredCell) -> str:
    """A network in one line: the unit of its times, and its properties."""
    unit = "units of T_dl" if isinstance(network, WirelessSystem) else "seconds"
    return f"in {unit}: {properties(network)}"


def properties(network: WirelessSystem | Site | MeasuredCell) -> str:
    """What a network is like, in one line."""
    values = {row.option: row.value for row in explained(network)}
    if isinstance(network, WirelessSystem):
        return "rho {rho}, T_min {t_min}, mean delay {mean_delay}".format(**values)
    if isinstance(network, MeasuredCell):
        return f"{values['bandwidth']}, users' SNRs from file={network.file or 'FILE.csv'}"
    return (
        "{bandwidth} at {carrier}, radius {radius}, {base_dbm} down, {user_dbm} up, "
        "{indoor} of users indoors"
    ).format(**values)


def _allowed(hint: Any, value: Any) -> str:
    options = get_args(hint)
    if isinstance(value, bool):
        return "true, false"
    if isinstance(value, str):
        return ", ".join(options) if options else "a file"
    bounds = {
        side: getattr(part, side)
        for extra in options[1:]
        for part in getattr(extra, "metadata", ())
        for side in ("ge", "le")
        if hasattr(part, side)
    }
    return f"{bounds['ge']:g} to {bounds['le']:g}" if len(bounds) == 2 else "from 0 on"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"
