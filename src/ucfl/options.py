"""Names with options, as people type them (``name:option=value:option=value``), and their bounds.

A bound is written once, in the type of the field that it is for, as in ``mu: NotNegative = 0.1``;
it holds for scenarios, for what is typed and for what is made in Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ucfl.errors import UcflError, check_name

LARGEST_SEED = 2**63 - 1
#: Close to the largest number that a float32 can hold.
LARGEST = 3e38

Positive = Annotated[float, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
Passes = Annotated[int, Field(ge=1, le=10_000)]
#: Copies of the model that every user trains.
Copies = Annotated[int, Field(ge=1, le=1_000)]
#: n_k of eq. 9: a share of the user's data if below 1, else a count.
VarianceBatch = Annotated[float, Field(gt=0, le=1_000_000_000)]
#: A part of the model, or several: ``head``, ``normalisation+conv1``.
PartName = Annotated[str, Field(min_length=1, max_length=1000)]


def split(text: str, kind: str, known: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The name, which must be one of ``known``, and its options as text."""
    name, *options = text.split(":")
    check_name(kind, name, known)
    return name, pairs(text, options)


def pairs(text: str, options: Sequence[str]) -> dict[str, str]:
    """Options by their names, both as typed in ``text``."""
    found = [option.partition("=") for option in options]
    if bad := [option for option, equals, _ in found if not equals]:
        raise UcflError(f"{text!r}: write options as option=value, not {bad[0]!r}.")
    return {option: value for option, _, value in found}


def typed(owner: Any, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as values of the types that the fields of ``owner``, a dataclass, have."""
    known = _adapters(owner)
    values: dict[str, Any] = {}
    for option, given in options.items():
        if not known:
            raise UcflError(f"{name} has no options, so {option!r} is not one.")
        check_name(f"option of {name}", option, known)
        try:
            values[option] = known[option].validate_python(given)
        except ValidationError as error:
            raise UcflError(f"{name}: {option}={given}: {reason(error)}.") from error
    return values


def check_fields(owner: Any, name: str) -> None:
    """Raise where a field of a frozen dataclass is out of bounds; called by its constructor.

    Values become those of the fields' types, so that 1 and 1.0 are one setting.
    """
    kind: Any = type(owner)
    given = {field: getattr(owner, field) for field in _adapters(kind)}
    for field, value in typed(kind, name, given).items():
        object.__setattr__(owner, field, value)


def check_seed(seed: int) -> None:
    """Raise where a seed is not one that all generators take."""
    if not isinstance(seed, Integral) or not 0 <= seed <= LARGEST_SEED:
        raise UcflError(f"a seed is a whole number from 0 to {LARGEST_SEED}, not {seed!r:.60}.")


def reason(error: ValidationError) -> str:
    """What is wrong, in the words of the first error, with the words that may be written instead.

    Of ``int | Literal["all", "auto"]`` pydantic reports an error for the number and one for the
    words.
    """
    first, *others = error.errors()
    said = first["msg"].removeprefix("Value error, ")
    words = [
        other["msg"].removeprefix("Input should be ")
        for other in others
        if other["type"] == "literal_error" and other["loc"][:-1] == first["loc"][:-1]
    ]
    if not words:
        return said
    return f"{said.partition(', unable to parse')[0]}, or {words[0]}"


@lru_cache(maxsize=256)
def _adapters(owner: Any) -> dict[str, TypeAdapter[Any]]:
    """What checks each field; numbers are finite everywhere."""
    hints = get_type_hints(owner, include_extras=True)
    config = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True)
    fields = [field.name for field in dataclasses.fields(owner) if field.init]
    return {field: TypeAdapter(hints[field], config=config) for field in fields}
