"""MNIST with its writers, whom QMNIST's extended labels name (Yadav and Bottou, 2019)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError, unreadable
from ucfl.users.dataset import INT32, Dataset, Images, Labels, Owners, missing, read_idx

#: MNIST's images and labels, and QMNIST's labels, whose first rows are of the same images.
FILES = {
    split: (
        f"{mnist}-images-idx3-ubyte.gz",
        f"{mnist}-labels-idx1-ubyte.gz",
        f"qmnist-{split}-labels-idx2-int.gz",
    )
    for split, mnist in (("train", "train"), ("test", "t10k"))
}
#: Columns of an extended label.
COLUMNS, CLASS, WRITER = 8, 0, 2


@cache
def load(folder: Path) -> Dataset:
    """The training images belong to 539 writers, the test images to 297 others."""
    home = folder / "qmnist"
    if not all((home / name).exists() for names in FILES.values() for name in names):
        raise missing("qmnist", home)
    inputs, labels, owners = _read({name: home / name for name in FILES["train"]}, "train")
    tests, answers, others = _read({name: home / name for name in FILES["test"]}, "test")
    source = (
        f"MNIST with QMNIST's writers ({len(labels):,} training images of {len(owners.names)} "
        f"writers, {len(answers):,} test images of {len(others.names)} others)"
    )
    return Dataset(inputs, labels, 10, source, tests, answers, owners, others)


def files_of(folder: Path) -> Callable[[Path], None]:
    """What copies the files of a folder, once they are found to belong together."""
    wanted = [name for names in FILES.values() for name in names]
    found = {file.name: file for file in folder.rglob("*.gz") if file.name in wanted}
    if absent := [name for name in wanted if name not in found]:
        raise UcflError(
            f"{folder} lacks {', '.join(absent)}: put MNIST's four files and QMNIST's two files of "
            "extended labels there."
        )
    for split in FILES:
        _read(found, split)

    def write(home: Path) -> None:
        for name in wanted:
            shutil.copyfile(found[name], home / name)

    return write


def _read(files: dict[str, Path], split: str) -> tuple[Images, Labels, Owners]:
    """Images, classes and writers of one split."""
    images, labels, extended = (files[name] for name in FILES[split])
    pixels, classes, rows = read_idx(images), read_idx(labels), read_idx(extended, INT32)
    try:
        _check(pixels, classes, rows)
    except ValueError as error:
        raise unreadable(extended, error, "import qmnist again.") from error
    ids, of = np.unique(rows[: len(classes), WRITER], return_inverse=True)
    names = tuple(f"writer-{number:04}" for number in ids.tolist())
    return pixels[:, None], classes.astype(np.int64), Owners(names, of.astype(np.int64))


def _check(pixels: NDArray[Any], classes: NDArray[Any], rows: NDArray[Any]) -> None:
    """Raise ValueError unless images, labels and extended labels are of the same digits."""
    count = len(classes) if classes.ndim == 1 else 0
    if pixels.shape != (count, 28, 28) or not count or classes.max() > 9:
        raise ValueError("MNIST's images beside it are not 28 by 28 with labels 0 to 9")
    if rows.ndim != 2 or rows.shape[1] != COLUMNS or len(rows) < count:
        raise ValueError("it has not 8 columns, or not a row for each image")
    if (rows[:count, CLASS] != classes).any() or rows[:count, WRITER].min() < 0:
        raise ValueError("it is not of the images beside it")
