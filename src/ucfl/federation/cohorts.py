"""Who takes part in a round: drawn by counters, so that a cohort depends on (seed, round) alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ucfl.errors import UcflError
from ucfl.federation.draws import uniform
from ucfl.users import Participation, Users
from ucfl.users.names import place_of

#: Round -> the users that take part, by number or name; from a person, for instance.
CohortFunction = Callable[[int], Sequence[int | str]]
#: What keeps these draws apart from others of the same seed, round and user.
KEY = -17
#: Rounds whose draws are made together.
BLOCK = 64


@dataclass(frozen=True, eq=False)
class Cohorts:
    """``cohorts(t)`` [m] marks who takes part in round t; None: everyone."""

    participation: Participation
    ids: Tensor
    sizes: Tensor
    names: tuple[str, ...]
    available: list[list[int]]
    seed: int
    function: CohortFunction | None = None
    _drawn_keys: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        users: Users,
        seed: int,
        participation: Participation,
        function: CohortFunction | None = None,
    ) -> Cohorts:
        """The cohorts of these users; a ``function`` of a person's decides alone."""
        if participation.number is not None and participation.number > len(users):
            raise UcflError(
                f"participation asks for {participation.number} users, and there are {len(users)}."
            )
        sizes = users.train.sizes.cpu()
        later = () if users.newcomers is None else users.newcomers.names
        available = participation.available(users.names, later)
        ids, names = users.ids.cpu(), users.names
        return cls(participation, ids, sizes, names, available, seed, function)

    def __call__(self, t: int) -> Tensor | None:
        """Who takes part in round t."""
        if self.function is None and self.participation.everyone:
            return None
        chosen = self._drawn(t) if self.function is None else self._given(self.function(t), t)
        present = torch.zeros(len(self.ids), dtype=torch.bool)
        present[chosen] = True
        return None if bool(present.all()) else present

    def _drawn(self, t: int) -> Tensor:
        """Those with the highest keys: u, or u^(1 / n_i) for users in proportion to their data.

        (Efraimidis and Spirakis, 2006: drawing without replacement.)
        """
        available = torch.tensor(self.available[(t - 1) % len(self.available)], dtype=torch.int64)
        keys = self._keys(t)[available]
        if self.participation.by == "size":
            keys = keys.clamp(min=1e-12).log() / self.sizes[available]
        order = keys.argsort(descending=True, stable=True)
        return available[order[: self.participation.count(len(available))]]

    def _keys(self, t: int) -> Tensor:
        """[m] uniform draws of round t; many rounds at once, which costs hardly more than one."""
        block, place = divmod(t, BLOCK)
        if block not in self._drawn_keys:
            rounds = torch.arange(block * BLOCK, (block + 1) * BLOCK)[:, None]
            self._drawn_keys.clear()
            self._drawn_keys[block] = uniform(self.seed, rounds, self.ids, KEY)
        return self._drawn_keys[block][place]

    def _given(self, users: Sequence[int | str], t: int) -> Tensor:
        try:
            marks = np.asarray(users.tolist() if isinstance(users, Tensor) else users)
            if marks.dtype == bool and marks.shape == (len(self.ids),):
                return torch.from_numpy(marks.nonzero()[0])
            if marks.dtype == bool and marks.size:
                raise TypeError  # truth values are whole numbers, and no places
            places = [place_of(u, self.names) if isinstance(u, str) else u for u in users]
            chosen = torch.as_tensor([operator.index(place) for place in places])
        except (TypeError, ValueError):
            raise UcflError(
                f"the cohort of round {t} must be a list of users' places (whole numbers) or "
                f"names, or a truth value for each of the {len(self.ids)} users."
            ) from None
        chosen = chosen.to(torch.int64)
        if chosen.numel() and not (int(chosen.min()) >= 0 and int(chosen.max()) < len(self.ids)):
            raise UcflError(
                f"the cohort of round {t} names users that are not there; places run from 0 to "
                f"{len(self.ids) - 1}."
            )
        return chosen
