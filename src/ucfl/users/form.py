"""What all users' examples have in common: shapes and types of inputs and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ucfl.errors import UcflError

#: One user's inputs and targets, an example a row.
Pair = tuple[NDArray[Any], NDArray[Any]]

#: More are a slip of the hand, such as a label that is no class: memory grows with their number.
MOST_CLASSES = 100_000
#: The target of a position that does not count, in a sequence (PyTorch's ``ignore_index``).
IGNORED = -100


@dataclass(frozen=True)
class Form:
    """The shape and type of one input and one target; ``classes`` is 0 for targets in numbers."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    target_shape: tuple[int, ...]
    target_dtype: torch.dtype
    classes: int

    @property
    def bytes(self) -> float:
        """What one example takes."""
        inputs = np.prod(self.shape, dtype=float) * self.dtype.itemsize
        targets = np.prod(self.target_shape, dtype=float) * self.target_dtype.itemsize
        return float(inputs + targets)


def common_form(
    by_split: Mapping[str, Sequence[Pair]], names: Sequence[str], classes: int | None
) -> Form:
    """Check every user's arrays; the form that all of them share."""
    inputs, targets, kinds = _Shape("inputs"), _Shape("targets"), set[str]()
    for where, x, y in _each(by_split, names):
        _check_inputs(where, x)
        _check_targets(where, y)
        inputs.check(where, x)
        targets.check(where, y)
        kinds.add("uint8" if x.dtype == np.uint8 else "f" if x.dtype.kind == "f" else "i")
    if inputs.found is None or targets.found is None or len(kinds) != 1:
        raise UcflError("all users' inputs must be of one kind: uint8, floating point or integer.")
    dtype = {"uint8": torch.uint8, "f": torch.float32, "i": torch.int64}[kinds.pop()]
    numbers = {y.dtype.kind == "f" for _, _, y in _each(by_split, names)}
    if len(numbers) != 1:
        raise UcflError(
            "some users' targets are whole numbers (classes), others' are floating-point numbers; "
            "give all of one kind."
        )
    if numbers.pop():
        if classes is not None:
            raise UcflError("targets are floating-point numbers, which have no classes.")
        return Form(inputs.found, dtype, targets.found, torch.float32, 0)
    count = _number_of_classes(by_split, names, classes)
    return Form(inputs.found, dtype, targets.found, torch.int64, count)


@dataclass
class _Shape:
    """The shape of an example, which all users share."""

    kind: str
    found: tuple[int, ...] | None = None

    def check(self, where: str, array: NDArray[Any]) -> None:
        shape = array.shape[1:]
        self.found = shape if self.found is None else self.found
        if shape != self.found:
            raise UcflError(
                f"{where}: {self.kind} have shape {shape}, but other users have {self.found}."
            )


def _each(
    by_split: Mapping[str, Sequence[Pair]], names: Sequence[str]
) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Every user's arrays that hold anything, and where they are."""
    for split, pairs in by_split.items():
        for name, (x, y) in zip(names, pairs, strict=True):
            where = f"{name}: {split} data"
            if x.ndim < 1 or y.ndim < 1:
                raise UcflError(f"{where}: inputs and targets must be arrays, an example a row.")
            if split == "train" and len(y) == 0:
                raise UcflError(f"{name} has no training data; leave the user out or give it some.")
            if len(x) != len(y):
                raise UcflError(f"{where} has {len(x)} inputs but {len(y)} targets.")
            if len(y):
                yield where, x, y


def _check_inputs(where: str, x: NDArray[Any]) -> None:
    if x.dtype.kind not in "fiub":
        raise UcflError(f"{where}: inputs must be numbers, not {x.dtype}.")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise UcflError(f"{where} contains NaN or infinite values; clean it first.")
    if x.size and not _fits(x):
        raise UcflError(
            f"{where} contains numbers that are too large (in {x.dtype}); scale it first."
        )


def _check_targets(where: str, y: NDArray[Any]) -> None:
    if y.dtype.kind not in "iuf":
        raise UcflError(
            f"{where}: targets must be classes (whole numbers) or floating-point numbers, not "
            f"{y.dtype}."
        )
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and _fits(y)):
        raise UcflError(
            f"{where}: targets are NaN, infinite or too large for float32; clean or scale them."
        )


def _number_of_classes(
    by_split: Mapping[str, Sequence[Pair]], names: Sequence[str], classes: int | None
) -> int:
    """One more than the highest class, unless it is said; classes are numbered from 0."""
    if classes is not None and not 1 <= classes <= MOST_CLASSES:
        raise UcflError(f"classes are 1 to {MOST_CLASSES:,}, not {classes}.")
    highest = -1
    for where, _, y in _each(by_split, names):
        real = y[y != IGNORED] if y.ndim > 1 else y
        if not real.size:
            continue
        low, high = int(real.min()), int(real.max())
        if low < 0 or (classes is not None and high >= classes):
            within = f"0..{classes - 1}" if classes is not None else "0, 1, 2 and so on"
            raise UcflError(f"{where}: classes run from {low} to {high}, but must lie in {within}.")
        if high >= MOST_CLASSES:
            raise UcflError(
                f"{where} has the class {high}, but classes are numbered from 0 without gaps, "
                f"{MOST_CLASSES:,} at most; targets that are amounts must be floating-point "
                "numbers."
            )
        highest = max(highest, high)
    return classes if classes is not None else max(1 + highest, 1)


def _fits(x: NDArray[Any]) -> bool:
    """Whether inputs keep their values, up to rounding, in the type that they are stacked in."""
    kind = np.finfo(np.float32) if x.dtype.kind == "f" else np.iinfo(np.int64)
    return x.dtype.kind == "b" or bool(not x.size or (kind.min <= x.min() and x.max() <= kind.max))
