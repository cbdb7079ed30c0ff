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

    def recalled(
        self, training: LocalTraining, start: tuple[Tensor, ...], here: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The optimiser's state for the round's next training: as it was left, or ``start``.

        ``here`` are the places of the users whose it is (None: everyone's).
        """
        if training.optimiser_state == "reset":
            return start
        if self.before is None:
            raise UcflError(
                "an optimiser's state is kept by a run: train with ucfl.run, or let it start anew "
                "in every round (optimiser_state = reset)."
            )
        found = [self.before.get(self._name(part)) for part in range(len(start))]
        return tuple(
            value if kept is None else kept if here is None else kept[here]
            for value, kept in zip(start, found, strict=True)
        )

    def keep(self, parts: Sequence[Tensor], here: Tensor | None, users: int) -> None:
        """What a training leaves; absent users' states stay as they were."""
        for part, value in enumerate(parts):
            if here is not None:
                zeros = value.new_zeros(users, *value.shape[1:])
                value = (self.before or {}).get(self._name(part), zeros).index_copy(0, here, value)
            self.after[self._name(part)] = value
        self.trainings += 1

    def _name(self, part: int) -> str:
        return f"{PREFIX}{self.trainings}/{part}"
