"""Numbers that a network cannot have, refused in one sentence."""

from __future__ import annotations

import math

from ucfl.errors import UcflError


def check_positive(name: str, value: float) -> None:
    """Raise unless the value is a finite number above zero."""
    if not (math.isfinite(value) and value > 0):
        raise UcflError(f"{name} must be a number above 0, not {value:g}.")


def check_not_negative(owner: object, *names: str) -> None:
    """Raise where one of the owner's times or powers is negative, endless or not a number."""
    for name in names:
        value = getattr(owner, name)
        if not (math.isfinite(value) and value >= 0):
            raise UcflError(f"{name} must be a number from 0 up, not {value:g}.")
