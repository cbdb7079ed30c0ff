"""What users answered in a round, and how many bytes and seconds it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ucfl.deploy.protocol import Work


@dataclass
class Answers:
    """By users' places: metrics of the round before, rows of this one, who was there."""

    metrics: dict[int, Mapping[str, float]] = field(default_factory=dict)
    uploads: dict[int, Tensor] = field(default_factory=dict)
    present: list[int] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    seconds: list[Mapping[Work, float]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return sum(row.numel() * row.element_size() for row in self.uploads.values())

    @property
    def processors(self) -> dict[str, float]:
        """Seconds that all users' processes computed since their answers before; training alone."""
        words: tuple[Work, ...] = ("processor", "training_processor")
        return {f"users_{w}": sum(each.get(w, 0.0) for each in self.seconds) for w in words}

    @property
    def slowest(self) -> dict[str, float]:
        """Of each kind of a user's work, the longest."""
        names = {name for each in self.seconds for name in each if "processor" not in name}
        return {name: max(each.get(name, 0.0) for each in self.seconds) for name in sorted(names)}


@dataclass
class Ledger:
    """Bytes of numbers by round; round 0 is what happens once, before training.

    ``down`` counts each stream's content once, as a broadcast does, ``delivered`` as often as it
    went to a user; ``up`` is the sum over users. ``seconds`` are those of the exchange that began
    the round, of mixing and storing, of the slowest user's work, and of the processors.
    """

    entries: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, t: int, **amounts: int) -> None:
        """More bytes of a round."""
        entry = self._of(t)
        for name, amount in amounts.items():
            entry[name] += amount

    def took(self, t: int, **seconds: float) -> None:
        """What took how long in a round."""
        self._of(t)["seconds"] |= {name: round(value, 4) for name, value in seconds.items()}

    def only_until(self, t: int) -> None:
        """Forget rounds that are done again, and what was sent down after the last one."""
        self.entries = {number: entry for number, entry in self.entries.items() if number <= t}
        if t in self.entries:
            self.entries[t] |= {"down": 0, "delivered": 0} if t else {}

    def _of(self, t: int) -> dict[str, Any]:
        nothing = {"round": t, "down": 0, "delivered": 0, "up": 0, "seconds": {}}
        return self.entries.setdefault(t, nothing)
