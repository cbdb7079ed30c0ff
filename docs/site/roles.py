"""Docstrings as the site shows them.

Code that they name as Sphinx does (``:func:`name` ``) is plain code here, and a comment ``#:``
above a constant is its docstring.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|attr|meth|mod|data|exc):`~?([^`]+)`")


class Plain(griffe.Extension):
    """Prepares docstrings before they are read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object that is loaded."""
        if obj.docstring is None and obj.is_attribute and (said := comment_above(obj)):
            obj.docstring = griffe.Docstring(said, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"``\1``", obj.docstring.value)


def comment_above(obj: griffe.Object) -> str:
    """The lines of ``#:`` right above a constant."""
    if obj.lineno is None:
        return ""
    lines = obj.lines_collection[obj.filepath][: obj.lineno - 1]  # type: ignore[index]
    found: list[str] = []
    while lines and lines[-1].strip().startswith("#:"):
        found.insert(0, lines.pop().strip().removeprefix("#:").strip())
    return " ".join(found)
