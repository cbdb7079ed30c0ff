"""A person's own code by name: ``module:name``, found beside them as with ``python -m``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ucfl.errors import UcflError


def imported(kind: str, name: str) -> Any:
    """What ``module:name`` names; ``kind`` says what it is to be, in an error."""
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the person's module raises while it loads
        raise UcflError(f"the {kind} {name!r} could not be loaded: {error}.") from error
