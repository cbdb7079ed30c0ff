"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things: 1 round, 2 rounds."""
    return f"{number} {noun}{'s' * (number != 1)}"
