"""Shoulder exercises felt by a smartwatch (Burns et al., 2018), of the package seglearn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.arrays import read_npz
from ucfl.errors import UcflError, unreadable
from ucfl.users.dataset import Dataset, Owners, missing
from ucfl.users.unpickle import PickledArray, read_pickled_npy

SOURCE_FILE = "watch_dataset.npy"
FILE = "watch.npz"
#: Pendulum, abduction, forward elevation, internal and external rotation, trapezius, row.
EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
#: Three axes of acceleration, in g, and three of rotation, in rad/s; what makes either about 1.
CHANNELS = ("ax", "ay", "az", "wx", "wy", "wz")
SCALES = (1.0, 1.0, 1.0, 2.0, 2.0, 2.0)
#: Two seconds at 50 samples a second. A window overlaps the next one by half, and no other.
WINDOW, STEP = 100, 50
ADVICE = "import watch again."


@cache
def load(folder: Path) -> Dataset:
    """Windows [channels, samples] of every recording, whose owner is the person."""
    file = folder / "watch" / FILE
    if not file.exists():
        raise missing("watch", file.parent)
    arrays = read_npz(file, ADVICE)
    try:
        recordings = _checked(arrays)
    except (KeyError, ValueError) as error:
        raise unreadable(file, error, ADVICE) from error
    cut = [_windows(one) for one in recordings]
    counts = [len(windows) for windows in cut]
    people, of = np.unique(np.repeat(arrays["people"], counts), return_inverse=True)
    return Dataset(
        np.concatenate(cut),
        np.repeat(arrays["labels"], counts).astype(np.int64),
        classes=len(EXERCISES),
        source=f"seglearn's watch data ({len(people)} people, {len(counts)} recordings)",
        owners=Owners(tuple(f"person-{n}" for n in people.tolist()), of.astype(np.int64)),
        series=np.repeat(np.arange(len(counts)), counts),
        class_names=EXERCISES,
    )


def files_of(source: Path) -> Callable[[Path], None]:
    """What writes the recordings as plain numbers; the source is a pickle, and is not trusted."""
    places = [source] if source.is_file() else sorted(source.rglob(SOURCE_FILE))
    if not places:
        raise UcflError(f"{source} holds no {SOURCE_FILE}, which the package seglearn has.")
    file, advice = places[0], "get seglearn 1.2.5 again."
    found = read_pickled_npy(file, advice)
    try:
        arrays = _converted(found)
        _checked(arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(file, error, advice) from error
    return lambda home: np.savez(home / FILE, allow_pickle=False, **arrays)


def _windows(recording: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled = (recording / np.array(SCALES, dtype=np.float32)).T
    every = np.lib.stride_tricks.sliding_window_view(scaled, WINDOW, axis=1)
    return np.ascontiguousarray(every[:, ::STEP].transpose(1, 0, 2))


def _converted(found: Any) -> dict[str, NDArray[Any]]:
    """The recordings one after the other, and what is known of each."""
    if not isinstance(found, dict):
        raise ValueError("it does not hold recordings by name")
    for name, expected in (("X_labels", CHANNELS), ("y_labels", EXERCISES)):
        if found[name] != list(expected):
            raise ValueError(f"its {name} are not {', '.join(expected)}")
    if not isinstance(found["X"], list) or not found["X"]:
        raise ValueError("it holds no recordings")
    recordings = [_numbers(one) for one in found["X"]]
    if any(one.ndim != 2 or one.shape[1] != len(CHANNELS) for one in recordings):
        raise ValueError("a recording has not one row of six numbers for each moment")
    with np.errstate(over="ignore"):  # what is too large is told by its infinity
        samples = np.concatenate(recordings).astype(np.float32)
    return {
        "samples": samples,
        "lengths": np.array([len(one) for one in recordings]),
        "labels": _numbers(found["y"]),
        "people": _numbers(found["subject"]),
    }


def _numbers(value: Any) -> NDArray[Any]:
    if not isinstance(value, PickledArray) or value.numbers is None:
        raise ValueError("it holds something else than arrays of numbers")
    return value.numbers


def _checked(arrays: dict[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
    """Every recording, or ValueError."""
    samples, lengths = arrays["samples"], arrays["lengths"]
    labels, people = arrays["labels"], arrays["people"]
    if samples.dtype != np.float32 or samples.ndim != 2 or samples.shape[1] != len(CHANNELS):
        raise ValueError("its samples are not six numbers for each moment")
    if not np.isfinite(samples).all():
        raise ValueError("some of its samples are no numbers")
    for what in (lengths, labels, people):
        if what.dtype.kind not in "iu" or what.ndim != 1 or len(what) != len(lengths):
            raise ValueError("length, exercise and person of its recordings are not all there")
    if not len(lengths) or lengths.min() < WINDOW or lengths.sum() != len(samples):
        raise ValueError("its recordings are not as long as it says")
    if not (labels.min() >= 0 and labels.max() < len(EXERCISES) and people.min() >= 0):
        raise ValueError("its exercises are not 0 to 6, or its people not numbered")
    return np.split(samples, np.cumsum(lengths)[:-1])
