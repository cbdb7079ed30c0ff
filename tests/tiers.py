"""The fast tier: `make check` runs the tests that measured little, `make test` all of them.

`make durations` measures every test in processor seconds (a busy machine changes nothing) and
writes tests/durations.json. With `--fast`, a test that takes too long with all its parameters is
left out, and so are tests that need something that is expensive to set up. A test that was never
measured is run: it is likely the one that is being written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "durations.json"
#: Processor seconds of a fast test, all its parameters together: what a tier costs is their sum.
MOST = 1.5
#: Fixtures of a session that take seconds to make: runs to report on, a browser, the site.
EXPENSIVE = {"folder", "runs", "story", "chromium", "look", "site", "pages"}


def pytest_addoption(parser):
    group = parser.getgroup("ucfl")
    group.addoption("--fast", action="store_true", help="leave out tests that take long")
    group.addoption("--measure", action="store_true", help="write tests/durations.json")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--fast"):
        return
    stored = json.loads(FILE.read_text())
    slow = [item for item in items if is_slow(item, stored)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]


def is_slow(item, stored):
    """Whether a test is known to take long."""
    file = item.nodeid.partition("::")[0]
    if EXPENSIVE & set(item.fixturenames) or file in stored["not measured"]:
        return True
    return stored["seconds"].get(name_of(item.nodeid), 0.0) >= MOST


def name_of(nodeid):
    """A test's name without its parameters: they count together."""
    return nodeid.partition("[")[0]


def _spent():
    return sum(os.times()[:4])  # ours and our children's, user and system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    before = _spent()
    item.user_properties.append(("before", before))
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "call":
        before = dict(item.user_properties)["before"]
        item.user_properties.append(("seconds", round(_spent() - before, 2)))
    yield


_measured: dict[str, float] = {}


def pytest_runtest_logreport(report):
    seconds = dict(report.user_properties).get("seconds")
    if report.when == "teardown" and seconds is not None:
        name = name_of(report.nodeid)
        _measured[name] = round(_measured.get(name, 0.0) + seconds, 2)


def pytest_sessionfinish(session):
    config = session.config
    if not config.getoption("--measure") or hasattr(config, "workerinput"):
        return
    stored = json.loads(FILE.read_text()) if FILE.exists() else {"not measured": [], "seconds": {}}
    files = {name.partition("::")[0] for name in _measured}
    kept = {
        name: seconds
        for name, seconds in stored["seconds"].items()
        if name.partition("::")[0] not in files and Path(name.partition("::")[0]).exists()
    }
    # Only what is not fast need be known.
    slow = {name: seconds for name, seconds in _measured.items() if seconds >= MOST}
    left = [file for file in stored["not measured"] if file not in files and Path(file).exists()]
    text = json.dumps(
        {"not measured": sorted(left), "seconds": dict(sorted((kept | slow).items()))}, indent=1
    )
    FILE.write_text(text + "\n")
