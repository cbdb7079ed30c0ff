"""What a command imports before it knows what to do: people wait for it."""

import subprocess
import sys

import pytest

#: Libraries that take a part of a second or more, and that few commands need.
SLOW = ("sklearn", "scipy.stats", "scipy.optimize", "pandas", "matplotlib", "mlxtend", "flwr")


@pytest.mark.parametrize("module", ["ucfl", "ucfl.cli"])
def test_slow_libraries_are_imported_where_they_are_used(module):
    code = f"import sys, {module}; print(*(name for name in {SLOW} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
