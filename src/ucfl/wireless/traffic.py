"""What a round sends and computes, before any radio turns it into time."""

from __future__ import annotations

from dataclasses import dataclass

from ucfl.wireless.checks import check_not_negative


@dataclass(frozen=True)
class Traffic:
    """One round: models broadcast down, models that each user sends up, local work.

    ``work`` is in passes of FedAvg over a user's data (its E local epochs are 1); a forward pass
    that a method needs counts a third. Numbers of a few bytes (sizes, losses, variances) are not
    counted.
    """

    down: float
    up: float
    work: float = 1.0

    def __post_init__(self) -> None:
        check_not_negative(self, "down", "up", "work")

    def down_bytes(self, model_bytes: float) -> float:
        """Bytes on the downlink; a broadcast counts once, whoever listens."""
        return self.down * model_bytes

    def up_bytes(self, model_bytes: float, users: int) -> float:
        """Bytes on the uplink, of all users together."""
        return self.up * model_bytes * users
