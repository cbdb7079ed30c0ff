"""What a round costs on air (paper, sec. V-D)."""

from __future__ import annotations

import dataclasses

from ucfl.options import split, typed
from ucfl.wireless.audience import Audience
from ucfl.wireless.cell import RadioCell
from ucfl.wireless.explained import explained, summary
from ucfl.wireless.planner import Limits, Option, Plan, plan
from ucfl.wireless.site import MEASURED, SITES, MeasuredCell, Site
from ucfl.wireless.system import SYSTEMS, System, WirelessSystem
from ucfl.wireless.traffic import Traffic

#: What a name can stand for: a system with any users, or a cell that users are still to be put in.
Network = WirelessSystem | Site | MeasuredCell
#: All names.
NETWORKS: dict[str, Network] = {**SYSTEMS, **SITES, **MEASURED}


def find(text: str) -> Network:
    """A network by name, changed by options: ``slow-uplink:rho=3``, ``urban-micro:radius=200m``.

    Its ``serving(users, model_bytes)`` is the network with users in it.
    """
    name, options = split(text, "system", NETWORKS)
    found = NETWORKS[name]
    return dataclasses.replace(found, **typed(type(found), name, options))


__all__ = [
    "MEASURED",
    "NETWORKS",
    "SITES",
    "SYSTEMS",
    "Audience",
    "Limits",
    "MeasuredCell",
    "Network",
    "Option",
    "Plan",
    "RadioCell",
    "Site",
    "System",
    "Traffic",
    "WirelessSystem",
    "explained",
    "find",
    "plan",
    "summary",
]
