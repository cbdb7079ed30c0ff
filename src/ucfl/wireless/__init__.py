"""What a round costs on air (paper, sec. V-D)."""

from __future__ import annotations

import dataclasses

from ucfl.options import split, typed
from ucfl.wireless.audience import Audience
from ucfl.wireless.cell import SITES, RadioCell, Site
from ucfl.wireless.planner import Option, Plan, plan
from ucfl.wireless.system import SYSTEMS, System, WirelessSystem
from ucfl.wireless.traffic import Traffic


def find(text: str) -> WirelessSystem | Site:
    """A system or site by name, changed by options: ``slow-uplink:rho=3``, ``urban-micro:seed=1``.

    Its ``serving(users, model_bytes)`` is the network with users in it.
    """
    known: dict[str, WirelessSystem | Site] = {**SYSTEMS, **SITES}
    name, options = split(text, "system", known)
    found = known[name]
    return dataclasses.replace(found, **typed(type(found), name, options))


__all__ = [
    "SITES",
    "SYSTEMS",
    "Audience",
    "Option",
    "Plan",
    "RadioCell",
    "Site",
    "System",
    "Traffic",
    "WirelessSystem",
    "find",
    "plan",
]
