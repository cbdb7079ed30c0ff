import numpy as np
import pytest
import torch

from conftest import make_users
from ucfl.errors import UcflError
from ucfl.users import Users


def pair(n, shape=(2,), classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *shape)), rng.integers(0, classes, n)


def test_stacking_pads_and_remembers_sizes():
    users = Users.from_arrays([pair(3), pair(5)], [pair(1)] * 2, [pair(2)] * 2, classes=3)
    assert users.train.inputs.shape == (2, 5, 2)
    assert users.train.sizes.tolist() == [3, 5]
    assert users.train.real.sum(1).tolist() == [3, 5]
    assert torch.equal(users.train.inputs[0, :3], torch.tensor(pair(3)[0]).float())


def test_held_out_data_is_split_off_when_none_is_given():
    users = Users.from_arrays([pair(100), pair(50)], classes=3)
    assert users.train.sizes.tolist() == [80, 40]
    assert users.validation.sizes.tolist() == [10, 5]
    assert users.test.sizes.tolist() == [10, 5]


def test_selecting_users_keeps_each_one_whole():
    users = make_users([5, 9, 2], groups=[7, 8, 9])
    chosen = users.select([2, 0])
    assert chosen.names == ("user-2", "user-0")
    assert chosen.ids.tolist() == [2, 0]
    assert chosen.groups.tolist() == [9, 7]
    assert torch.equal(chosen.train.inputs[1], users.train.inputs[0])


def test_users_are_selected_by_name():
    pairs = [(np.full((5, 2), float(i)), np.zeros(5, int)) for i in range(3)]
    users = Users.from_arrays(pairs, names=["anna", "ben", "carla"])
    assert users.select(["carla", 0]).names == ("carla", "anna")
    with pytest.raises(UcflError, match="unknown user 'bne'; did you mean 'ben'"):
        users.select(["bne"])


def test_users_say_what_they_are():
    users = make_users([20, 1, 1300], groups=[0, 0, 1])
    assert repr(users) == (
        "Users: 3 users, 1,321 training examples (1 to 1,300 a user), 12 for validation, 12 for "
        "test, inputs 1x6x6 (float32), 3 classes, 2 groups"
    )
    one = Users.from_arrays([(np.zeros((4, 7), np.uint8), np.zeros(4, int))], names=["anna"])
    assert repr(one) == (
        "Users: 1 user (anna), 2 training examples (2 a user), 1 for validation, 1 for test, "
        "inputs 7 (uint8), 1 class"
    )
    numbers = Users.from_arrays([(np.zeros((4, 7)), np.zeros((4, 2)))])
    assert repr(numbers).endswith("inputs 7 (float32), targets 2 (float32)")
    words = Users.from_arrays([(np.zeros((4, 7), int), np.zeros((4, 7), int))], classes=9)
    assert repr(words).endswith("inputs 7 (int64), 9 classes for each of 7 positions")
    many = Users.from_arrays([(np.zeros((4, 7)), np.zeros(4, int))] * 9, names=range(9))
    assert repr(many).startswith("Users: 9 users (0, 1, 2, 3, 4 and 4 more), ")


def test_label_counts_leave_padding_out():
    pairs = [(np.zeros((3, 2)), np.array([0, 0, 2])), (np.zeros((1, 2)), np.array([1]))]
    users = Users.from_arrays(pairs, [pair(1)] * 2, [pair(1)] * 2, classes=4)
    assert users.label_counts().tolist() == [[2, 0, 1, 0], [0, 1, 0, 0]]


def test_checksum_sees_every_change():
    users = make_users([5, 9])
    same = make_users([5, 9])
    assert users.checksum() == same.checksum()
    assert users.checksum() != users.select([1, 0]).checksum()
    same.train.targets[0, 0] = (same.train.targets[0, 0] + 1) % 3
    assert users.checksum() != same.checksum()


def test_torch_datasets():
    data = torch.utils.data.TensorDataset(torch.randn(10, 4), torch.arange(10) % 2)
    users = Users.from_datasets([data, data])
    assert len(users) == 2
    assert users.classes == 2
    assert users.input_shape == (4,)


def broken(**changes):
    good = {"train": [pair(4), pair(4)], "classes": 3}
    return {**good, **changes}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (broken(train=[]), "at least one user"),
        (broken(train=[pair(4), pair(0)]), "user-1 has no training data"),
        (broken(train=[pair(4), (np.full((4, 2), np.nan), np.zeros(4, int))]), "NaN"),
        (
            broken(train=[pair(4), pair(4, shape=(3,))]),
            r"shape \(3,\), but other users have \(2,\)",
        ),
        (broken(train=[pair(4), (pair(4)[0], np.array([0, 1, 2, 3]))]), "must lie in 0..2"),
        (broken(train=[pair(4), (pair(4)[0], np.array([0, 1, 2, -1]))]), "must lie in 0..2"),
        (broken(train=[pair(4), (pair(4)[0], np.zeros(3, int))]), "4 inputs but 3 targets"),
        (broken(train=[pair(4), (pair(4)[0], np.zeros(4))]), "whole numbers"),
        (broken(train=[pair(4), (np.array(["a"] * 4), np.zeros(4, int))]), "must be numbers"),
        (broken(train=[pair(4), (np.zeros((4, 2), np.uint8), np.zeros(4, int))]), "one kind"),
        (broken(names=["a"]), "2 users were given but 1 names"),
        (broken(names=["a", "a"]), "two users are called 'a'; give every user a name of its own"),
        (broken(test=[pair(4)]), "2 users have training data but 1 test"),
    ],
)
def test_bad_data_is_one_sentence(arguments, sentence):
    with pytest.raises(UcflError, match=sentence) as caught:
        Users.from_arrays(**arguments)
    assert "\n" not in str(caught.value)


def write(folder, name, **arrays):
    np.savez(folder / f"{name}.npz", **arrays)


def test_a_folder_with_one_file_per_user(tmp_path):
    for name, group in (("anna", 1), ("bert", 0)):
        x, y = pair(20)
        write(tmp_path, name, x=x, y=y, group=group)
    users = Users.from_folder(tmp_path)
    assert users.names == ("anna", "bert")
    assert users.groups.tolist() == [1, 0]
    assert users.train.sizes.tolist() == [16, 16]


def test_a_folder_with_its_own_splits(tmp_path):
    x, y = pair(20)
    for name in "ab":
        write(tmp_path, name, x_train=x, y_train=y, x_test=x[:7], y_test=y[:7])
    users = Users.from_folder(tmp_path)
    assert users.train.sizes.tolist() == [20, 20]
    assert users.test.sizes.tolist() == [7, 7]
    assert users.validation.sizes.tolist() == [0, 0]
    assert users.groups is None


def test_broken_folders_are_one_sentence(tmp_path):
    with pytest.raises(UcflError, match=r"holds no \.npz"):
        Users.from_folder(tmp_path)
    x, y = pair(20)
    write(tmp_path, "a", x=x, y=y)
    write(tmp_path, "b", x_train=x, y_train=y)
    with pytest.raises(UcflError, match="laid out unlike"):
        Users.from_folder(tmp_path)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UcflError, match=r"b\.npz is damaged"):
        Users.from_folder(tmp_path)
    write(tmp_path, "b", z=x)
    (tmp_path / "a.npz").unlink()
    with pytest.raises(UcflError, match="holds 'z', which nothing would use"):
        Users.from_folder(tmp_path)
    write(tmp_path, "b", x_test=x, y_test=y)
    with pytest.raises(UcflError, match="neither x and y nor"):
        Users.from_folder(tmp_path)
    write(tmp_path, "a", x_train=x, y_train=y)
    with pytest.raises(UcflError, match=r"b\.npz has no x_train"):
        Users.from_folder(tmp_path)


@pytest.mark.parametrize("value", [1e39, -1e39, 1e300])
def test_numbers_that_would_become_infinite_are_refused(value):
    x, y = pair(4)
    x[2, 1] = value
    with pytest.raises(UcflError, match=r"user-1: train data contains numbers that are too large"):
        Users.from_arrays([pair(3), (x, y)])


def test_whole_numbers_that_would_turn_negative_are_refused():
    x = np.full((4, 2), 2**63, dtype=np.uint64)
    with pytest.raises(UcflError, match="too large"):
        Users.from_arrays([(x, pair(4)[1])])


def test_the_largest_numbers_are_kept():
    x, y = pair(40)
    x[:] = np.finfo(np.float32).max
    assert Users.from_arrays([(x, y)]).train.inputs.isfinite().all()


def test_a_label_that_is_no_class_is_refused_before_anything_is_counted():
    x, y = pair(4)
    y[2] = 10**9
    with pytest.raises(UcflError, match=r"user-1: train data has the class 1000000000"):
        Users.from_arrays([pair(3), (x, y)])
    with pytest.raises(UcflError, match=r"classes are 1 to 100,000, not 1000000000"):
        Users.from_arrays([pair(3)], classes=10**9)
    y[2] = -1
    with pytest.raises(UcflError, match=r"must lie in"):
        Users.from_arrays([pair(3), (x, y)])


def test_held_out_beside_data_that_is_held_out_is_refused():
    with pytest.raises(UcflError, match="'held_out' has no effect"):
        Users.from_arrays([pair(9)], [pair(2)], held_out=0.3)
    assert Users.from_arrays([pair(9)], [pair(2)]).train.sizes.tolist() == [9]
