"""Whether what is asked for can be held at all: said before it is allocated."""

from __future__ import annotations

import os

import torch

from ucfl.errors import UcflError


def total_memory(device: torch.device) -> float:
    """Bytes of a device, used or not: what is refused does not depend on what else runs."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # a system that does not say
        return float("inf")


def check_fits(size: float, what: str, advice: str, device: torch.device | None = None) -> None:
    """Raise where ``size`` bytes are more than the device has; ``what`` and ``advice`` say more."""
    total = total_memory(device or torch.device("cpu"))
    if size > total:
        raise UcflError(
            f"{what} would take {size / 1e9:,.1f} GB of memory, and there are {total / 1e9:,.1f}; "
            f"{advice}."
        )
