"""Names with options, as people type them: ``name:option=value:option=value``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ucfl.errors import UcflError, check_name


def split(text: str, kind: str, known: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The name, which must be one of ``known``, and its options as text."""
    name, *options = text.split(":")
    check_name(kind, name, known)
    pairs = [option.partition("=") for option in options]
    if bad := [option for option, equals, _ in pairs if not equals]:
        raise UcflError(f"{text!r}: write options as option=value, not {bad[0]!r}.")
    return name, {option: value for option, _, value in pairs}


def typed(owner: type[Any], name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Options as values of the types that the fields of the dataclass ``owner`` have."""
    hints = get_type_hints(owner, include_extras=True)
    known = {field.name: hints[field.name] for field in dataclasses.fields(owner) if field.init}
    values: dict[str, Any] = {}
    for option, text in options.items():
        if not known:
            raise UcflError(f"{name} has no options, so {option!r} is not one.")
        check_name(f"option of {name}", option, known)
        adapter: TypeAdapter[Any] = TypeAdapter(known[option])
        try:
            values[option] = adapter.validate_python(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise UcflError(f"{name}: {option}={text}: {reason}.") from error
    return values
