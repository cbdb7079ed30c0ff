"""Asking the C library to keep memory: where there is one that can be asked, and where not."""

import ctypes

import pytest

from ucfl.execution.memory import keep_freed_memory


@pytest.mark.parametrize("error", [TypeError, OSError, None])
def test_systems_without_mallopt_are_left_alone(error, monkeypatch):
    """Windows raises TypeError for ``CDLL(None)``; musl and macOS have no ``mallopt``."""

    class Library:
        def __init__(self, name):
            if error:
                raise error("no such library")

    monkeypatch.setattr(ctypes, "CDLL", Library)
    keep_freed_memory.cache_clear()
    try:
        assert keep_freed_memory() is False
    finally:
        keep_freed_memory.cache_clear()
