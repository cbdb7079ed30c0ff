"""Users in a line, as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucfl.users.names import listed, numbered_names

if TYPE_CHECKING:
    from ucfl.users.population import Users


def in_words(users: Users) -> str:
    """How many users with how much data, of what shape, in how many groups."""
    train = users.train.sizes
    low, high = int(train.min()), int(train.max())
    named = "" if users.names == numbered_names(len(users)) else f" ({listed(users.names)})"
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    shape = "x".join(map(str, users.input_shape)) or "numbers"
    parts = [
        _count(len(users), "user") + named,
        f"{_count(int(train.sum()), 'training example')} ({each} a user)",
        f"{int(users.validation.sizes.sum()):,} for validation",
        f"{int(users.test.sizes.sum()):,} for test",
        f"inputs {shape} ({str(users.train.inputs.dtype).removeprefix('torch.')})",
        _targets(users),
    ]
    if users.groups is not None:
        parts.append(_count(len(users.groups.unique()), "group"))
    if users.newcomers is not None:
        parts.append(_count(len(users.newcomers), "newcomer"))
    return f"Users: {', '.join(parts)}"


def _targets(users: Users) -> str:
    shape = "x".join(map(str, users.target_shape))
    if users.classes:
        each = f" for each of {shape} positions" if shape else ""
        return _count(users.classes, "class", "classes") + each
    return f"targets {shape or 'numbers'} (float32)"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
