"""What a person gives as an object has a name in the scenario that is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Before the source of users that were given by hand.
OWN = "own users: "
#: Before the name of a model that was given as an object and cannot be imported by its name.
OWN_MODEL = "own model: "

#: A model's name, a module, its class, or a function that makes one.
ModelSource = str | Callable[..., Any]


def model_name(model: ModelSource) -> str:
    """``module:name`` where that leads to the function or class again; else its name alone."""
    if isinstance(model, str):
        return model
    name = getattr(model, "__qualname__", type(model).__qualname__)
    place = getattr(model, "__module__", "__main__")
    is_made = hasattr(model, "__qualname__")  # a function or a class, which a module has by name
    if not is_made or place in (None, "__main__") or "<" in name:
        return f"{OWN_MODEL}{name}"
    return f"{place}:{name}"
