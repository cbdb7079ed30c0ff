"""Which tests `make check` leaves out."""

from types import SimpleNamespace

from tiers import is_slow

STORED = {
    "not measured": ["tests/runs/test_old.py"],
    "seconds": {"tests/users/test_users.py::test_long": 4.2},
}


def slow(nodeid, *fixtures):
    return is_slow(SimpleNamespace(nodeid=nodeid, fixturenames=fixtures), STORED)


def test_measured_tests_are_left_out_by_their_time_and_new_ones_are_run():
    assert slow("tests/users/test_users.py::test_long")
    assert slow("tests/users/test_users.py::test_long[of one kind]")
    assert not slow("tests/users/test_users.py::test_short")
    assert not slow("tests/users/test_new.py::test_new")
    assert slow("tests/runs/test_old.py::test_unknown")


def test_what_needs_an_expensive_fixture_is_left_out():
    assert slow("tests/report/test_page.py::test_new", "look", "story")
    assert not slow("tests/report/test_page.py::test_new", "tmp_path")
