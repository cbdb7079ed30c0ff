"""The same method between real machines, on Flower: a server, and users who keep their data.

What calls home is off before Flower is imported: telemetry, the search for updates, and the
installation of packages at run time.
"""

from __future__ import annotations

import importlib.util
import os

from ucfl.errors import not_installed

for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
):
    os.environ.setdefault(_name, _value)


def check_installed() -> None:
    """Raise where Flower is not there."""
    if importlib.util.find_spec("flwr") is None:
        raise not_installed("training between machines needs Flower", "flower")
