"""Several processes: what those that share a run agree on, and who has a folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "scenes.py"
NAMES = [
    line.strip(" ,\n")
    for line in DRIVER.read_text().partition("SCENES = (")[2].partition("\n)")[0].splitlines()[1:]
]


@pytest.fixture(scope="module")
def errors():
    """Of all scenes, played in one process that may fork."""
    done = subprocess.run([sys.executable, DRIVER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_processes(errors, name):
    assert not errors[name], errors[name]
