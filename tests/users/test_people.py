"""Data sets whose examples belong to people, and the scenarios whose users these are."""

import hashlib
import shutil
import zipfile

import numpy as np
import pytest
import torch

import ucfl
from conftest import SHARED
from ucfl.errors import UcflError, UcflWarning
from ucfl.users import Scenario, acquire, find, qmnist, watch
from users.people import recordings, write_qmnist, write_watch

NATURAL = Scenario(name="people", dataset="qmnist", split="natural", model="logistic", rounds=2)


@pytest.fixture
def writers(data_folder, tmp_path):
    acquire.import_from("qmnist", write_qmnist(tmp_path / "files"))
    return data_folder


@pytest.fixture
def wearers(data_folder, tmp_path):
    acquire.import_from("watch", write_watch(tmp_path / "watch_dataset.npy", recordings()))
    return data_folder


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
def test_a_user_is_a_writer_and_those_of_the_test_images_come_later(writers):
    users = NATURAL.build(0)
    data = qmnist.load(writers)
    assert users.names == ("writer-0003", "writer-0007")
    assert users.newcomers.names == ("writer-0103", "writer-0107")
    assert not set(users.ids.tolist()) & set(users.newcomers.ids.tolist())
    for found, inputs, places in (
        (users, data.inputs, [range(4, 9), range(4)]),
        (users.newcomers, data.test_inputs, [range(4, 9), range(4)]),
    ):
        for user, mine in enumerate(places):
            have = [
                image
                for split in ("train", "validation", "test")
                for image in found.split(split).inputs[user, : found.split(split).sizes[user]]
            ]
            assert sorted(x.flatten().tolist() for x in have) == sorted(
                inputs[i].ravel().tolist() for i in mine
            )


def test_people_with_few_examples_are_left_out_with_a_word(writers):
    with pytest.warns(UcflWarning, match="1 of 3 people of qmnist have fewer than 3 examples"):
        NATURAL.build(0)
    with pytest.warns(UcflWarning, match=r"^user-2: too few examples to keep any back"):
        assert len(NATURAL.change({"fewest": 1}).build(0)) == 3
    with pytest.raises(UcflError, match=r"0 of the 3 people of qmnist .* lower 'fewest'"):
        NATURAL.change({"fewest": 50}).build(0)


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
def test_the_number_of_people_is_what_is_there(writers, tmp_path):
    run = ucfl.run(NATURAL, "fedavg", out=tmp_path / "r", device="cpu")
    assert run.scenario.users == 2
    assert run.newcomers is not None
    again = ucfl.run(
        run.scenario, "fedavg", rounds=3, out=tmp_path / "r", resume=True, device="cpu"
    )
    assert again.summary
    assert run.scenario.change({"fewest": 1}).users == 20  # as if nobody had counted
    for wrong, sentence in (
        ({"users": 10}, "the users are the people of qmnist .* 'users' has no effect"),
        ({"points": 10}, "'points' has no effect"),
        ({"test_images": 10}, "'test_images' has no effect"),
    ):
        with pytest.raises(UcflError, match=sentence):
            NATURAL.change(wrong)
    with pytest.raises(UcflError, match="the users are there already, so 'users' has no effect"):
        Scenario(dataset="qmnist", split="natural", users=7).build(0)
    with pytest.raises(UcflError, match="newcomers of their own"):
        ucfl.run(NATURAL.change({"newcomers": 0.5}), "fedavg", out=tmp_path / "n", device="cpu")


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
def test_groups_and_shifts_are_of_people_and_newcomers_alike(writers):
    plain = NATURAL.change({"groups": 2}).build(0)
    users = NATURAL.change({"groups": 2, "rotations": (0, 90)}).build(0)
    for before, after in ((plain, users), (plain.newcomers, users.newcomers)):
        assert after.groups.tolist() == [0, 1]
        assert torch.equal(after.train.inputs[0], before.train.inputs[0])
        turned = torch.rot90(before.train.inputs[1], dims=(-2, -1))
        assert torch.equal(after.train.inputs[1], turned)


def test_a_data_set_without_owners_has_no_natural_users():
    with pytest.raises(UcflError, match="mnist5k does not say whose its examples are"):
        Scenario(split="natural").build(0)


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
def test_the_writers_images_can_be_dealt_out_as_any_others(writers):
    users = Scenario(dataset="qmnist", users=3, test_images=2).build(0)
    assert users.newcomers is None
    assert users.test.sizes.tolist() == [2, 2, 2]


def test_windows_are_cut_in_time_with_a_gap_and_scaled(wearers):
    users = find("watch-people").build(0)
    assert users.names == ("person-1", "person-2")
    assert users.input_shape == (6, watch.WINDOW)
    assert users.class_names == watch.EXERCISES
    contents = recordings()
    moments = {"train": {}, "validation": {}, "test": {}}
    for split, seen in moments.items():
        part = users.split(split)
        for user in range(2):
            real = part.real[user]
            for window, label in zip(
                part.inputs[user, real], part.targets[user, real], strict=True
            ):
                which = user * 7 + int(label)
                raw = (window.T * torch.tensor(watch.SCALES)).numpy()
                start = np.abs(contents["X"][which] - raw[0]).sum(1).argmin()
                assert np.allclose(contents["X"][which][start : start + 100], raw, atol=1e-5)
                seen.setdefault(which, set()).update(range(start, start + watch.WINDOW))
    for which in range(14):
        train, validation, test = (moments[split][which] for split in moments)
        assert max(train) < min(validation)
        assert max(validation) < min(test)
    assert find("watch-people").build(1).checksum() == users.checksum()  # nothing is drawn


def test_recordings_are_dealt_out_to_nobody_else(wearers):
    with pytest.raises(UcflError, match=r"overlap in time, so only split = 'natural'"):
        find("watch-people").change({"split": "iid"}).build(0)
    for shift in ({"rotations": (90,)}, {"permute_pixels": True}):
        with pytest.raises(UcflError, match=f"are no images, so '{next(iter(shift))}' has no"):
            find("watch-people").change(shift).build(0)


def test_qmnist_is_imported_whole_or_not_at_all(data_folder, tmp_path):
    files = write_qmnist(tmp_path / "files")
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        for file in files.iterdir():
            archive.write(file, f"MNIST/raw/{file.name}")
    acquire.import_from("qmnist", tmp_path / "files.zip")
    assert acquire.verify("qmnist") == []
    _, _, extended = qmnist.FILES["train"]
    others = write_qmnist(tmp_path / "others")
    shutil.copy(others / qmnist.FILES["test"][2], others / extended)  # of other digits
    with pytest.raises(UcflError, match="it is not of the images beside it"):
        acquire.import_from("qmnist", others)
    (others / extended).unlink()
    with pytest.raises(UcflError, match=f"lacks {extended}"):
        acquire.import_from("qmnist", others)
    (data_folder / "qmnist" / extended).write_bytes(b"changed")
    assert acquire.verify("qmnist") == [extended]
    with pytest.raises(UcflError, match="damaged"):
        qmnist.load.__wrapped__(data_folder)


def test_qmnist_is_fetched_file_by_file(data_folder, tmp_path, server, monkeypatch):
    files, address = server
    downloads = []
    for file in write_qmnist(tmp_path / "files").iterdir():
        body = file.read_bytes()
        files[f"/{file.name}"] = body, len(body)
        md5 = hashlib.md5(body).hexdigest()
        downloads.append(acquire.Download(f"{address}/{file.name}", md5, file.name))
    monkeypatch.setitem(acquire.DOWNLOADS, "qmnist", tuple(downloads))
    acquire.fetch("qmnist")
    assert acquire.verify("qmnist") == []
    del files["/train-images-idx3-ubyte.gz"]
    with pytest.raises(UcflError, match="ucfl data import qmnist FOLDER"):
        acquire.fetch("qmnist")
    assert acquire.verify("qmnist") == []


def test_watch_is_imported_from_a_file_a_folder_or_a_wheel(data_folder, tmp_path):
    file = write_watch(tmp_path / "folder" / "data" / watch.SOURCE_FILE, recordings())
    with zipfile.ZipFile(tmp_path / "seglearn.whl", "w") as archive:
        archive.write(file, f"seglearn/data/{file.name}")
        archive.writestr("seglearn/base.py", "")
    sums = set()
    for source in (file, tmp_path / "folder", tmp_path / "seglearn.whl"):
        home = acquire.import_from("watch", source)
        sums.add(acquire._sha256(home / watch.FILE))
        assert acquire.verify("watch") == []
    assert len(sums) == 1
    with pytest.raises(UcflError, match=r"holds no watch_dataset\.npy"):
        acquire.import_from("watch", data_folder)
    with pytest.raises(UcflError, match=r"pip download --no-deps seglearn==1\.2\.5"):
        acquire.fetch("watch")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"X": []}, "no recordings"),
        ({"X": [np.zeros((300, 5))] * 14}, "six numbers"),
        ({"X": [np.full((300, 6), np.nan)] * 14}, "no numbers"),
        ({"X": [np.full((300, 6), 1e300)] * 14}, "no numbers"),
        ({"X": [np.zeros((99, 6))] * 14}, "as long as it says"),
        ({"X": [[1.0]] * 14}, "something else than arrays"),
        ({"y": np.arange(14)}, "not 0 to 6"),
        ({"y": np.arange(3)}, "not all there"),
        ({"subject": np.zeros(14)}, "not all there"),
        ({"y_labels": ["PEN"]}, "y_labels are not PEN, ABD"),
    ],
)
def test_recordings_that_are_none_are_one_sentence(
    data_folder,
    tmp_path,
    change,
    sentence,
):
    file = write_watch(tmp_path / "watch_dataset.npy", recordings() | change)
    with pytest.raises(UcflError, match=sentence) as caught:
        acquire.import_from("watch", file)
    assert "\n" not in str(caught.value)
    assert not data_folder.exists() or not any(data_folder.iterdir())


def test_missing_people_say_how_to_get_them(data_folder):
    with pytest.raises(UcflError, match="ucfl data fetch qmnist"):
        find("mnist-writers").build(0)
    with pytest.raises(UcflError, match="ucfl data import watch seglearn"):
        find("watch-people").build(0)


def test_real_writers(monkeypatch):
    if not (SHARED / "data" / "qmnist").is_dir():
        pytest.skip("the real MNIST files with QMNIST's labels are not in ../shared/data")
    monkeypatch.setenv("UCFL_DATA", str(SHARED / "data"))
    users = find("mnist-writers").build(0)
    assert (len(users), len(users.newcomers)) == (539, 297)
    assert not set(users.names) & set(users.newcomers.names)
    sizes = sum(users.split(split).sizes for split in ("train", "validation", "test"))
    assert (int(sizes.sum()), int(sizes.min()), int(sizes.max())) == (60_000, 19, 131)
    assert acquire.verify("qmnist") == []


def test_real_wearers():
    file = acquire.data_folder() / "watch" / watch.FILE
    if not file.exists():
        pytest.skip("seglearn's watch data is not in the data folder; UCFL_DATA says where that is")
    users = find("watch-people").build(0)
    assert len(users) == 10
    assert users.label_counts().min() > 0
    assert file.stat().st_size < 10_000_000
