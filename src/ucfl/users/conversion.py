"""What people have (lists, tensors, labels of any kind) as arrays, and labels as classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucfl.errors import UcflError, first_line
from ucfl.users.form import Pair

#: Kinds of NumPy's types whose values are names of classes: texts, truth values, Python objects.
NAMES = "USbO"


def as_pairs(pairs: Sequence[Any], names: Sequence[str]) -> list[Pair]:
    """Each user's (inputs, labels), which may be lists, tensors or what NumPy takes, as arrays."""
    found = []
    for name, pair in zip(names, pairs, strict=True):
        try:
            inputs, labels = pair
        except (TypeError, ValueError):
            raise UcflError(f"{name}: give each user's data as (inputs, labels).") from None
        x = as_array(inputs, f"{name}: inputs")
        # Truth values are amounts, as in tables; whole numbers would be tokens.
        x = x.astype(np.float32) if x.dtype == bool else x
        found.append((x, as_array(labels, f"{name}: labels")))
    return found


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Values as one array; lists of unequal length and missing labels are no such thing."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError) as error:
        raise UcflError(f"{what} cannot be made one array ({first_line(error)}).") from error
    if array.dtype.kind == "U" and array.ndim == 1 and isinstance(values, list | tuple):
        array = np.array(values, dtype=object)  # NumPy would write a gap among texts as a text
    if array.dtype.kind == "O" and array.ndim == 1 and len(array):
        first, *others = {type(value) for value in array.tolist()}
        if not others and issubclass(first, int | float | str):
            return np.asarray(array.tolist())  # as tables keep columns that once had a gap
    return array


def has_gaps(values: NDArray[Any]) -> bool:
    """Whether there are missing values among texts or objects."""
    return values.dtype.kind == "O" and any(value is None or value != value for value in values)


def as_classes(
    by_split: Mapping[str, Sequence[Pair]], names: Sequence[str]
) -> tuple[dict[str, list[Pair]], tuple[str, ...] | None]:
    """Texts, truth values and objects as classes, in their order, and what these are called.

    Numbers stand for themselves; they have no names (None).
    """
    every = [y for pairs in by_split.values() for _, y in pairs if len(y)]
    if not any(y.dtype.kind in NAMES for y in every):
        return {split: list(pairs) for split, pairs in by_split.items()}, None
    for split, pairs in by_split.items():
        for name, (_, y) in zip(names, pairs, strict=True):
            if not len(y):
                continue  # an empty list is one of numbers
            _check_named(f"{name}: {split} labels", y)
    found = np.unique(np.concatenate([_text(y) for y in every]))
    classes = {
        split: [(x, np.searchsorted(found, _text(y))) for x, y in pairs]
        for split, pairs in by_split.items()
    }
    return classes, tuple(found.tolist())


def _check_named(where: str, labels: NDArray[Any]) -> None:
    if labels.dtype.kind == "f":
        raise UcflError(f"{where} are numbers, but those of other users are texts; use one kind.")
    if has_gaps(labels):
        raise UcflError(f"{where} have gaps; leave out examples without a label.")


def _text(labels: NDArray[Any]) -> NDArray[np.str_]:
    return np.array([str(label) for label in labels.tolist()], dtype=np.str_)
