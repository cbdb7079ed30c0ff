"""Ctrl-C and SIGTERM while a run trains: it stops after the round at hand.

A KeyboardInterrupt may come anywhere, also inside PyTorch, whose tracer may then abort the process,
and in destructors, where Python drops it; and where processes share a run, each would stop in
another round. So the first signal is remembered, and seen between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_runs, _asked = 0, False


@contextmanager
def between_rounds() -> Iterator[None]:
    """Inside, a stop that is asked for is seen by :func:`asked`."""
    global _runs
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1


def ask() -> bool:
    """Ask for a stop; False where no run is at work that would see it."""
    global _asked
    _asked = _runs > 0
    return _asked


def asked() -> bool:
    """Whether a stop was asked for."""
    return _asked
