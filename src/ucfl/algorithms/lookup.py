"""An algorithm by its name, by where its class is, as a class or as an object."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

from ucfl.algorithms.algorithm import Algorithm
from ucfl.algorithms.facts import Facts, implementation
from ucfl.errors import UcflError, first_line, unknown
from ucfl.imports import load
from ucfl.options import pairs, typed

TESTED_MODELS = ("aggregated", "personalised", "local")
KIND = "algorithm"
OWN = "Your own goes by 'module:Class', with options as 'module:Class:option=value'."


def find(
    given: str | Algorithm | type[Algorithm], registry: Mapping[str, type[Algorithm]]
) -> Algorithm:
    """An algorithm from ``name[:option=value…]``, ``module:Class[:option=value…]``, or itself."""
    if isinstance(given, Algorithm):
        check(type(given), registry)
        return given
    if isinstance(given, str):
        kind, options = _parse(given, registry)
    else:
        kind, options = given, {}
    check(kind, registry)
    return _made(kind, options)


def revived(facts: Facts, registry: Mapping[str, type[Algorithm]]) -> Algorithm:
    """The algorithm of a stored run, whose class must be there still."""
    kind = registry.get(facts.name) or load(facts.implementation, KIND)
    check(kind, registry)
    algorithm: Algorithm = kind(**facts.hyper_parameters)
    return algorithm


def _parse(text: str, registry: Mapping[str, type[Algorithm]]) -> tuple[Any, dict[str, str]]:
    """The class that a text names, and its options as text."""
    name, *rest = text.split(":")
    if name in registry:
        return registry[name], pairs(text, rest)
    if not rest or "=" in rest[0]:
        raise unknown(KIND, name, registry, OWN)
    return load(f"{name}:{rest[0]}", KIND), pairs(text, rest[1:])


def check(kind: Any, registry: Mapping[str, type[Algorithm]]) -> None:
    """Raise unless it is a whole class of algorithms, with a name that no other one has."""
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        what = kind.__name__ if isinstance(kind, type) else f"{type(kind).__name__} {kind!r:.60}"
        raise UcflError(
            f"{what} is no algorithm: give a name, or a class that inherits from "
            "ucfl.algorithms.Algorithm."
        )
    if kind is Algorithm:
        raise UcflError("Algorithm itself is no method: name a class that inherits from it.")
    if registry.get(kind.name) is kind:
        return
    where = implementation(kind)
    if kind.name in registry:
        raise UcflError(
            f"{where} has the name {kind.name!r} of an algorithm of ucfl: give the class a name of "
            'its own, as name: ClassVar[str] = "…".'
        )
    if not re.fullmatch(r"\w[\w.+-]*", kind.name):
        raise UcflError(
            f"{where}: a name is letters, digits and the signs . + - _, not {kind.name!r}."
        )
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise UcflError(f"{where} has no {missing[0]}(): an algorithm needs that function.")
    _check_parameters(kind, where)
    tested = getattr(kind, "tested_model", "")
    if isinstance(tested, str) and tested not in TESTED_MODELS:  # or a property
        raise UcflError(
            f"{where} does not say which model users deploy: give the class a tested_model: "
            f'ClassVar[str] = "…", one of {", ".join(TESTED_MODELS)}.'
        )
    own = [name for name, hint in inspect.get_annotations(kind).items() if _is_field(hint)]
    if lost := [name for name in own if name not in {f.name for f in dataclasses.fields(kind)}]:
        raise UcflError(
            f"{where} has {lost[0]!r}, which is no hyper-parameter yet: write "
            "@dataclass(frozen=True) above the class."
        )


def _check_parameters(kind: type[Algorithm], where: str) -> None:
    """Raise unless each function of an algorithm takes what it is called with."""
    for name, expected in inspect.getmembers(Algorithm, inspect.isfunction):
        own = inspect.getattr_static(kind, name)
        if own is expected or name.startswith("_") or not inspect.isfunction(own):
            continue
        parameters, wanted = inspect.signature(own), list(inspect.signature(expected).parameters)
        try:
            parameters.bind(*wanted)
        except TypeError:
            raise UcflError(
                f"{where}: {name}() is called with ({', '.join(wanted)}), and takes "
                f"({', '.join(parameters.parameters)}); write def {name}({', '.join(wanted)})."
            ) from None


def _is_field(hint: Any) -> bool:
    return "ClassVar" not in str(hint)


def _made(kind: type[Algorithm], options: Mapping[str, str]) -> Algorithm:
    try:
        values = typed(kind, kind.name, options)
        missing = [field.name for field in _required(kind) if field.name not in values]
    except NameError as error:  # of an annotation that only a type checker can read
        raise UcflError(f"{implementation(kind)} cannot be used: {first_line(error)}.") from error
    if missing:
        raise UcflError(
            f"{kind.name} needs a value for {missing[0]!r}: write "
            f"{implementation(kind)}:{missing[0]}=…, or give the field a default."
        )
    return kind(**values)


def _required(kind: type[Algorithm]) -> list[dataclasses.Field[Any]]:
    nothing = dataclasses.MISSING
    return [
        field
        for field in dataclasses.fields(kind)
        if field.init and field.default is nothing and field.default_factory is nothing
    ]
