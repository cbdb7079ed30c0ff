"""Numbers in sentences."""

from __future__ import annotations


def either(number: int, one: str, several: str) -> str:
    """The word that fits a number of things: is for one, are for two."""
    return one if number == 1 else several


def counted(number: int, noun: str) -> str:
    """A number of things: 1 round, 2 rounds."""
    return f"{number} {either(number, noun, f'{noun}s')}"
