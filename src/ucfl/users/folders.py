"""Users' files: a folder with one for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.arrays import read_npz
from ucfl.errors import UcflError
from ucfl.users.form import Pair
from ucfl.users.tables import numbered, read_csvs

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Folder:
    """What a folder of users' files holds: the pairs of each split that is there."""

    names: list[str]
    pairs: dict[str, list[Pair]]
    groups: list[int] | None
    class_names: tuple[str, ...] | None = None


def user_files(folder: Path) -> list[Path]:
    """The users' files in a folder: .npz, or .csv where there is none of those."""
    return sorted(folder.glob("*.npz")) or sorted(folder.glob("*.csv"))


def holds_images(folder: Path, smallest: int) -> bool:
    """Whether the first user's examples are images, so many pixels wide and high or more."""
    files = user_files(folder)
    if not files or files[0].suffix == ".csv":
        return False
    try:
        arrays = read_npz(files[0], "")
        shape = (arrays["x"] if "x" in arrays else arrays["x_train"]).shape[1:]
    except (UcflError, LookupError):  # said when the users are made
        return False
    return len(shape) == 3 and min(shape[1:]) >= smallest


def read_folder(
    folder: Path, target: str | None, *, numbers: bool = False, renumber: bool = True
) -> Folder:
    """Every user's arrays, laid out alike; ``numbers``: whole-number targets are amounts.

    ``renumber``: whole-number labels of tables that are not 0, 1, 2 … become so, and have names.
    """
    if not folder.is_dir():
        raise UcflError(f"{folder} is no folder; give one with a file per user.")
    files = user_files(folder)
    if not files:
        raise UcflError(f"{folder} holds no .npz or .csv file; put one per user there.")
    if files[0].suffix == ".npz" and (others := sorted(folder.glob("*.csv"))):
        raise UcflError(
            f"{folder} holds .npz and .csv files ({others[0].name}); give all users one kind."
        )
    class_names = None
    if files[0].suffix == ".csv":
        loaded = read_csvs(files, target)
        if renumber and not numbers:
            labels, class_names = numbered([arrays["y"] for arrays in loaded])
            loaded = [{**one, "y": y} for one, y in zip(loaded, labels, strict=True)]
    elif target is not None:
        raise UcflError("'target' names a column of .csv files, and these are .npz; leave it out.")
    else:
        loaded = [read_npz(file, "write it again.") for file in files]
        for file, arrays in zip(files, loaded, strict=True):
            _check_arrays(file, arrays)
    names = [file.stem for file in files]
    whole = ["x" in arrays for arrays in loaded]
    if any(whole) and not all(whole):
        odd = files[whole.index(not whole[0])].name
        raise UcflError(f"{odd} is laid out unlike {files[0].name}: use x, y in all or none.")
    pairs: dict[str, list[Pair]] = {}
    for split in [""] if all(whole) else SPLITS:
        x, y = (f"x_{split}", f"y_{split}") if split else ("x", "y")
        present = [x in arrays and y in arrays for arrays in loaded]
        if any(present) and not all(present):
            missing = files[present.index(False)].name
            raise UcflError(f"{missing} has no {x} and {y}, which other users have; add them.")
        if all(present):
            pairs[split or "train"] = [
                (arrays[x], _amounts(arrays[y]) if numbers else arrays[y]) for arrays in loaded
            ]
    if "train" not in pairs:
        raise UcflError(f"{files[0].name} has neither x and y nor x_train and y_train.")
    grouped = ["group" in arrays for arrays in loaded]
    if any(grouped) and not all(grouped):
        raise UcflError(
            f"{files[grouped.index(False)].name} has no group, which other users have; add it, or "
            "leave it out everywhere."
        )
    groups = [
        _group(file, arrays["group"])
        for file, arrays in zip(files, loaded, strict=True)
        if "group" in arrays
    ]
    return Folder(names, pairs, groups or None, class_names)


def _check_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise where an array would be ignored, such as a test set by another name."""
    whole, split = {"x", "y"}, {f"{part}_{name}" for part in "xy" for name in SPLITS}
    known = {"group"} | (split if whole.isdisjoint(arrays) else whole)
    if others := sorted(set(arrays) - known):
        raise UcflError(
            f"{file.name} holds {others[0]!r}, which nothing would use; a file has x and y, or "
            f"{', '.join(f'x_{name} and y_{name}' for name in SPLITS)}, and perhaps group: rename "
            "it, or leave it out."
        )


def _amounts(targets: NDArray[Any]) -> NDArray[Any]:
    return targets.astype(np.float64) if targets.dtype.kind in "iu" else targets


def _group(file: Path, value: NDArray[Any]) -> int:
    if value.size != 1 or value.dtype.kind not in "iu" or not 0 <= value.item() < 2**31:
        raise UcflError(f"{file}: a group is one whole number from 0 up; write it again.")
    return int(value.item())
