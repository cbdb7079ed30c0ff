"""What a person wrote and names as ``module:name``: their own model, algorithm or trade-off."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from functools import reduce
from pathlib import Path
from typing import Any

from ucfl.errors import UcflError, first_line


def load(reference: str, kind: str) -> Any:
    """What ``module:name`` refers to; the module is installed, or a file in the current folder."""
    module_name, _, name = reference.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as with python -m
    importlib.invalidate_caches()  # the file may have been written just now
    try:
        module = importlib.import_module(module_name)
        return reduce(getattr, name.split("."), module)
    except Exception as error:  # whatever the person's module raises while it loads
        reason = _reason(error, module_name, name)
        raise UcflError(f"the {kind} {reference!r} could not be loaded: {reason}.") from error
    except SystemExit as error:
        raise UcflError(
            f"the {kind} {reference!r} could not be loaded: {module_name} ends the program while "
            "it is imported; put what it runs under 'if __name__ == \"__main__\":'."
        ) from error


def _reason(error: Exception, module: str, name: str) -> str:
    """Why, in words that say what to do or where to look."""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return (
            f"there is no module {error.name!r} in the current folder or among the installed "
            f"packages; work in the folder that holds {error.name}.py"
        )
    if isinstance(error, AttributeError) and module in sys.modules:
        return f"the module {module!r} has no {name!r}"
    if "non-frozen dataclass from a frozen one" in str(error):
        return f"write @dataclass(frozen=True) above the class ({_place(error)})"
    place = "" if isinstance(error, SyntaxError) else f" ({_place(error)})"
    return f"{type(error).__name__}: {first_line(error)}{place}"


def _place(error: Exception) -> str:
    """The last line of the person's own code that led to the error, or else the last one of all."""
    frames = traceback.extract_tb(error.__traceback__)
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    own = [one for one in frames if not one.filename.startswith((*installed, "<", __file__))]
    where = [*frames, *own][-1]
    return f"{Path(where.filename).name}, line {where.lineno}"
