"""Which users take part in a round: a share of them, a number of them, those that are available."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ucfl.errors import UcflError, check_name

#: What a person writes: a share in (0, 1], or text such as ``10 users``, ``0.1:by=size``,
#: ``0.5:trace=available.csv``.
Text = float | str

FORM = (
    "a share above 0 and up to 1, or a number as '10 users'; then perhaps ':by=size' or "
    "':trace=FILE.csv'"
)


@dataclass(frozen=True)
class Participation:
    """``share`` of the available users, or ``number`` of them, drawn in every round.

    ``by``: all alike, or in proportion to how much data they have. ``trace``: a CSV file with the
    columns ``round`` and ``user`` (its name) that says who is available when; after its last round
    it starts again.
    """

    share: float = 1.0
    number: int | None = None
    by: Literal["uniform", "size"] = "uniform"
    trace: str | None = None

    @classmethod
    def of(cls, text: Text) -> Participation:
        """What a person wrote."""
        amount, *options = str(text).split(":")
        share, number = 1.0, None
        if counted := re.fullmatch(r"\s*(\d+)\s*users?\s*", amount):
            number = int(counted[1])
        else:
            try:
                share = float(amount)
            except ValueError:
                raise UcflError(f"participation is {FORM}, not {text!r}.") from None
        if number == 0 or not (math.isfinite(share) and 0 < share <= 1):
            raise UcflError(f"participation is {FORM}, not {text!r}.")
        given = {name: value for name, _, value in (option.partition("=") for option in options)}
        for name in given:
            check_name("option of participation", name, ("by", "trace"))
        by = given.get("by", "uniform")
        check_name("way to draw users", by, ("uniform", "size"))
        return cls(share, number, "size" if by == "size" else "uniform", given.get("trace"))

    @property
    def everyone(self) -> bool:
        """Whether all users take part in every round."""
        return self == Participation()

    def count(self, users: int) -> int:
        """How many of so many users take part; at least one, where there is any."""
        if self.number is not None:
            return min(self.number, users)
        return max(min(1, users), math.floor(self.share * users + 0.5))

    def available(self, names: Sequence[str], newcomers: Sequence[str] = ()) -> list[list[int]]:
        """The places of the users that are available, round by round; then from the beginning.

        A trace may name newcomers, who take part in no round.
        """
        if self.trace is None:
            return [list(range(len(names)))]
        return _read(Path(self.trace), names, newcomers)


def _read(file: Path, names: Sequence[str], newcomers: Sequence[str]) -> list[list[int]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as f:
            rows = list(csv.DictReader(f))
    except OSError as error:
        raise UcflError(f"{file} cannot be read ({error.strerror}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UcflError(f"{file} is not a CSV file ({error}).") from error
    places = {name: place for place, name in enumerate(names)}
    found: dict[int, set[int]] = {}
    for number, row in enumerate(rows, start=2):
        text, user = row.get("round"), row.get("user")
        if text is None or user is None or not text.isdecimal() or not 1 <= int(text) <= 10**6:
            raise UcflError(
                f"{file}, line {number}: an availability trace has the columns round (from 1) and "
                "user (a user's name)."
            )
        there = found.setdefault(int(text), set())
        if user in newcomers:
            continue
        if user not in places:
            raise UcflError(f"{file}, line {number}: no user is called {user!r}.")
        there.add(places[user])
    if not found:
        raise UcflError(f"{file} names no round and no user.")
    return [sorted(found.get(t, ())) for t in range(1, max(found) + 1)]
