"""What a round sends and computes, before any radio turns it into time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """One round: models broadcast down, models that each user sends up, local work.

    ``work`` is in passes of FedAvg over a user's data (its E local epochs are 1).
    """

    down: float
    up: float
    work: float = 1.0
