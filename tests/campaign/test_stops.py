"""Stopped at any moment and resumed is undisturbed, bit for bit: the campaign of stops."""

import subprocess
import sys
from pathlib import Path

import pytest

import ucfl
from campaign.moments import PLACES

STOPS = Path(__file__).parent / "stops.py"


def campaign(stops, *options):
    """The last line of what the campaign prints, in a process that may fork."""
    command = [sys.executable, STOPS, str(stops), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_places_are_named_after_functions_that_are_there():
    """One that is renamed would no longer be stopped in, and nobody would notice."""
    sources = "".join(file.read_text() for file in Path(ucfl.__file__).parent.rglob("*.py"))
    assert [name for name in PLACES if f"def {name}(" not in sources] == []


def test_stops_do_no_harm():
    kinds = "run,compare,fresh,ranks"
    assert campaign(10, "--seed", 1, "--plain", "--kinds", kinds).startswith("10 of 10 ")


@pytest.mark.long
def test_two_hundred_stops_do_no_harm():
    assert campaign(200, "--seed", 0).startswith("200 of 200 ")
