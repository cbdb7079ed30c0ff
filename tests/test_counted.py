"""Numbers in sentences."""

from ucfl.words import counted


def test_one_is_singular():
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
