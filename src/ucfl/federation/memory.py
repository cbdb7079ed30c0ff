"""Optimiser states that users keep from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ucfl.errors import UcflError
from ucfl.federation.training import LocalTraining

PREFIX = "optimiser/"


@dataclass
class Memory:
    """What the trainings of one round found and leave, by their order in the round.

    A round is a pure function of the state before it, so its caller owns this: ``before`` maps
    ``optimiser/i/j`` to part j of the optimiser's state in the round's training i, ``after`` is
    filled as the round trains. None: nobody remembers, and a training that must is refused.
    """

    before: Mapping[str, Tensor] | None = None
    after: dict[str, Tensor] = field(default_factory=dict)
    trainings: int = 0

    @classmethod
    def of(cls, state: Mapping[str, object]) -> Memory:
        """What a state remembers."""
        return cls(
            {
                name: value
                for name, value in state.items()
                if name.startswith(PREFIX) and isinstance(value, Tensor)
            }
        )

    def recalled(self, training: LocalTraining, start: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The optimiser's state for the round's next training: as it was left, or ``start``."""
        if training.optimiser_state == "reset":
            return start
        if self.before is None:
            raise UcflError(
                "an optimiser's state is kept by a run: train with ucfl.run, or let it start anew "
                "in every round (optimiser_state = reset)."
            )
        return tuple(
            self.before.get(f"{PREFIX}{self.trainings}/{part}", value)
            for part, value in enumerate(start)
        )

    def keep(self, parts: Sequence[Tensor]) -> None:
        """What a training leaves."""
        for part, value in enumerate(parts):
            self.after[f"{PREFIX}{self.trainings}/{part}"] = value
        self.trainings += 1
