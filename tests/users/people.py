"""Small files in the formats of data sets whose examples belong to people."""

import gzip
import pickle
import struct

import numpy as np

from ucfl.users import qmnist, watch


def idx(array, kind=8):
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def write_qmnist(folder, writers=(7, 7, 7, 7, 3, 3, 3, 3, 3, 9)):
    """Ten digits a split, which the same three writers wrote; other numbers in the test part."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, (images, labels, extended) in qmnist.FILES.items():
        count = len(writers)
        classes = rng.integers(0, 10, count, dtype=np.uint8)
        rows = np.zeros((count + 5, 8), dtype=">i4")  # QMNIST has more test digits than MNIST
        rows[:count, 0] = classes
        rows[:count, 2] = np.array(writers) + 100 * (split == "test")
        (folder / images).write_bytes(idx(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)))
        (folder / labels).write_bytes(idx(classes))
        (folder / extended).write_bytes(idx(rows, 12))
    return folder


def recordings(people=2, length=450):
    rng = np.random.default_rng(0)
    count = people * len(watch.EXERCISES)
    return {
        "X": [rng.normal(size=(length + 10 * i, 6)) for i in range(count)],
        "y": np.arange(count) % len(watch.EXERCISES),
        "subject": 1 + np.arange(count) // len(watch.EXERCISES),
        "side": np.zeros(count),
        "X_labels": list(watch.CHANNELS),
        "y_labels": list(watch.EXERCISES),
    }


def write_watch(file, contents, protocol=2):
    """As seglearn's file is written: one object in an ``.npy`` file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    array = np.empty((), dtype=object)
    array[()] = contents
    write_pickled(file, pickle.dumps(array, protocol=protocol))
    return file


def write_pickled(file, pickled):
    with file.open("wb") as stream:
        header = {"descr": "|O", "fortran_order": False, "shape": ()}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(pickled)
