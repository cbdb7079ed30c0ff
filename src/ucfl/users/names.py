"""Who a user is: by name or by number."""

from __future__ import annotations

import difflib
import operator
from collections import Counter
from collections.abc import Sequence

from ucfl.errors import UcflError

#: Names that a sentence lists at most.
LISTED = 5


def numbered_names(count: int) -> tuple[str, ...]:
    """What users are called where nobody names them."""
    return tuple(f"user-{i}" for i in range(count))


def checked_names(names: Sequence[object]) -> tuple[str, ...]:
    """Names as texts, if no two users share one."""
    found = tuple(map(str, names))
    if len(set(found)) < len(found):
        twice, _ = Counter(found).most_common(1)[0]
        raise UcflError(
            f"two users are called {short(twice)!r}; give every user a name of its own."
        )
    return found


def place_of(user: int | str, names: Sequence[str]) -> int:
    """A user's place among all, from its name or its number, which counts from 0."""
    if isinstance(user, str):
        if user in names:
            return names.index(user)
        near = difflib.get_close_matches(user, names, n=3, cutoff=0.5)
        advice = f"did you mean {_or(near)}?" if near else f"there are {listed(names)}."
        raise UcflError(f"unknown user {short(user)!r}; {advice}")
    try:
        place = operator.index(user)
    except TypeError:
        kind = type(user).__name__
        raise UcflError(f"a user is named by its name or its number, not by a {kind}.") from None
    if isinstance(user, bool) or not 0 <= place < len(names):
        raise UcflError(
            f"unknown user {user}; users are numbered from 0 to {len(names) - 1}, and there are "
            f"{listed(names)}."
        )
    return place


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    few = ", ".join(map(short, names[:LISTED]))
    return few + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def short(name: str) -> str:
    """A name that fits into a sentence."""
    return name if len(name) <= 40 else f"{name[:40]}…"


def _or(names: Sequence[str]) -> str:
    quoted = [repr(short(name)) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
