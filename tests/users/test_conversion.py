"""Lists, tensors, data frames and CSV files as users; labels of any kind as classes."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch

import ucfl
from ucfl.errors import UcflError, UcflWarning
from ucfl.users import Users, find

ROWS = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]]


def labels(users, split="train"):
    """Each user's labels as people called them."""
    part = users.split(split)
    names = users.class_names or [str(c) for c in range(users.classes)]
    return [
        [names[label] for label in row[:size]]
        for row, size in zip(part.targets.tolist(), part.sizes.tolist(), strict=True)
    ]


def test_lists_tensors_arrays_and_frames_are_the_same_users():
    given = {"held_out": 0.0}
    expected = Users.from_arrays([(np.array(ROWS), np.array([0, 1, 2, 1]))], **given).checksum()
    for x in (ROWS, torch.tensor(ROWS, requires_grad=True), pd.DataFrame(ROWS), tuple(ROWS)):
        for y in ([0, 1, 2, 1], torch.tensor([0, 1, 2, 1]), pd.Series([0, 1, 2, 1])):
            assert Users.from_arrays([(x, y)], **given).checksum() == expected


@pytest.mark.parametrize(
    ("mine", "yours", "names"),
    [
        (["cat", "dog"], ["emu", "cat"], ("cat", "dog", "emu")),
        ([True, False], [True, True], ("False", "True")),
        ([b"x", b"y"], [b"y", b"y"], ("b'x'", "b'y'")),
        ([3, 1], ["b", "a"], ("1", "3", "a", "b")),
        (pd.Series(["m", "w"], dtype="category"), pd.Series(["w", "w"]), ("m", "w")),
    ],
)
def test_labels_of_any_kind_are_classes_with_names(mine, yours, names):
    users = Users.from_arrays([(ROWS[:2], mine), (ROWS[:2], yours)], held_out=0.0)
    assert users.class_names == names
    assert users.classes == len(names)
    assert labels(users) == [[str(label) for label in each] for each in (mine, yours)]
    assert users.select([1]).class_names == names


def test_classes_are_those_of_all_users_and_splits():
    users = Users.from_arrays(
        [(ROWS[:2], ["b", "c"])], [(ROWS[:1], ["a"])], [(ROWS[:2], ["d", "b"])]
    )
    assert users.class_names == ("a", "b", "c", "d")
    assert labels(users) == [["b", "c"]]
    assert labels(users, "test") == [["d", "b"]]


def test_whole_numbers_stand_for_themselves():
    users = Users.from_arrays([(ROWS, pd.array([0, 3, 3, 0], dtype="Int64"))], held_out=0.0)
    assert users.class_names is None
    assert users.classes == 4


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([([[1.0], [1.0, 2.0]], [0, 1])], "user-0: inputs cannot be made one array"),
        ([3], r"give each user's data as \(inputs, labels\)"),
        ([(ROWS, ["a", "b", None, "a"])], "user-0: train labels have gaps"),
        ([(ROWS, ["a", "b", float("nan"), "a"])], "user-0: train labels have gaps"),
        ([(ROWS, ["a"] * 4), (ROWS, [0.5] * 4)], "user-1: train labels are numbers"),
        ([(ROWS, ["a", "b"])], "4 inputs but 2 targets"),
        ([([["x"], ["y"]], [0, 1])], "inputs must be numbers"),
    ],
)
def test_what_is_no_data_is_one_sentence(pairs, sentence):
    with pytest.raises(UcflError, match=sentence):
        Users.from_arrays(pairs)


def frame():
    return pd.DataFrame(
        {
            "age": [30, 40, 50, 60, 31, 41],
            "who": ["bo", "al", "bo", "al", "bo", "bo"],
            "height": [1.2, 1.6, 1.7, 1.8, 1.9, 2.0],
            "ill": ["no", "yes", "no", "no", "yes", "no"],
        }
    )


def test_a_data_frame_has_a_column_of_users_and_a_target():
    users = Users.from_frame(frame(), user="who", target="ill", held_out=0.0)
    assert users.names == ("al", "bo")
    assert users.class_names == ("no", "yes")
    assert labels(users) == [["yes", "no"], ["no", "no", "yes", "no"]]
    assert users.train.inputs[0, :2].tolist() == torch.tensor([[40, 1.6], [60, 1.8]]).tolist()
    chosen = Users.from_frame(frame(), user="who", target="ill", inputs=["age"], held_out=0.0)
    assert chosen.input_shape == (1,)
    assert chosen.train.inputs.dtype == torch.float32  # ages are quantities, not tokens


def test_a_table_with_the_habits_of_pandas_is_enough():
    class Table(dict):
        columns = property(lambda self: list(self))

    table = Table({name: column.to_list() for name, column in frame().items()})
    given = {"user": "who", "target": "ill", "held_out": 0.0}
    users = Users.from_frame(table, **given)
    assert users.checksum() == Users.from_frame(frame(), **given).checksum()


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({}, {"user": "whom"}, "unknown column 'whom'; did you mean 'who'"),
        ({}, {"target": "illness"}, "unknown column 'illness'"),
        ({}, {"inputs": ["size"]}, "unknown column 'size'"),
        ({}, {"inputs": []}, "no column beside"),
        ({"height": ["tall"] * 6}, {}, "column 'height' holds text, as 'tall', and inputs are num"),
        ({"height": [1.0, None] * 3}, {}, "column 'height' has gaps, the first in row 2"),
        ({"height": pd.Timestamp(0)}, {}, "column 'height' holds text, as '1970-01-01T00"),
        ({"who": ["al", None] * 3}, {}, "does not name the user of every row"),
        ({"ill": ["no", None] * 3}, {}, "column 'ill' has gaps"),
    ],
)
def test_what_is_wrong_with_a_data_frame_is_one_sentence(change, options, sentence):
    with pytest.raises(UcflError, match=sentence):
        Users.from_frame(frame().assign(**change), **{"user": "who", "target": "ill", **options})


def test_a_data_frame_without_columns_is_one_sentence():
    with pytest.raises(UcflError, match="has no columns"):
        Users.from_frame(pd.DataFrame(), user="who", target="ill")


def write_csvs(folder, target="label", users=3):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(users):
        rows = pd.DataFrame(rng.normal(size=(20, 3)), columns=["a", "b", "c"]).round(6)
        rows.insert(1, target, np.where(rows["a"] > 0, "high", "low"))
        rows.to_csv(folder / f"{'xyz'[i]}.csv", index=False)


@pytest.mark.parametrize("target", ["target", "label", "class", "y"])
def test_a_folder_with_a_csv_for_each_user(tmp_path, target):
    write_csvs(tmp_path / "data", target)
    users = Users.from_folder(tmp_path / "data", held_out=0.0)
    assert users.names == ("x", "y", "z")
    assert users.class_names == ("high", "low")
    assert users.input_shape == (3,)
    table = pd.read_csv(tmp_path / "data" / "y.csv")
    assert labels(users)[1] == table[target].to_list()
    expected = torch.tensor(table[["a", "b", "c"]].to_numpy(), dtype=torch.float32)
    assert torch.equal(users.train.inputs[1], expected)


def test_another_target_column_may_be_named(tmp_path):
    write_csvs(tmp_path / "data", "level")
    with pytest.raises(UcflError, match=r"has no column 'target', only a, level, b, c; call"):
        Users.from_folder(tmp_path / "data")
    assert Users.from_folder(tmp_path / "data", target="level").class_names == ("high", "low")


def test_csv_users_are_run_with_the_defaults_and_their_classes_are_kept(tmp_path):
    write_csvs(tmp_path / "data")
    scenario = find(str(tmp_path / "data"))
    assert scenario.model == "mlp"
    run = ucfl.run(scenario, "fedavg", rounds=1, out=tmp_path / "r")
    assert run.about["users"]["class_names"] == ["high", "low"]
    assert run.about["users"]["names"] == ["x", "y", "z"]


@pytest.mark.parametrize(("shape", "model"), [((1, 28, 28), "lenet5"), ((5,), "mlp")])
def test_a_folders_model_fits_its_inputs(tmp_path, shape, model):
    np.savez(tmp_path / "u.npz", x=np.zeros((4, *shape), np.float32), y=np.zeros(4, int))
    assert find(str(tmp_path)).model == model


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "x.csv is damaged"),
        ("a,label\n1,2,3\n", "x.csv is damaged"),
        ("a,b\n1,2\n", "has no column 'target', only a, b"),
        ("label\nhigh\n", "no column beside 'label'"),
        (
            "a,sex,label\n1,female,high\n2,male,low\n",
            r"x\.csv: column 'sex' holds text, as 'female', and inputs are numbers: encode it, "
            r"alike for all users \(pandas.get_dummies .*\), or leave the column out",
        ),
        ("a,day,label\n1,2026-01-05,high\n", "column 'day' holds text, as '2026-01-05'"),
        ("a,sex,label\n1,,high\n2,male,low\n1,female,low\n", "column 'sex' holds text, as 'male'"),
        ("a,b,label\n1,,high\n2,,low\n", "column 'b' has gaps, the first in row 1"),
        ("a,label\n,high\n1,low\n", "column 'a' has gaps"),
        ("a,label\n1,\n2,low\n", "column 'label' has gaps"),
        ("a,label\n1,\n2,3\n", "column 'label' has gaps"),
        ("a,a,label\n1,2,low\n", "two columns 'a'"),
        (
            "a,label\n1,low\n2.5,low\nn/k,high\n,high\n",
            r"x\.csv: column 'a' has the text 'n/k' among numbers, in row 3 of its examples",
        ),
        ("a,label\n", r"x\.csv has no examples, only column names"),
        ("a;label\n1;low\n", r"x\.csv separates its columns by semicolons"),
        ("a;label\n1,5;low\n", r"x\.csv separates its columns by semicolons"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UcflError, match=sentence):
        Users.from_folder(tmp_path)


@pytest.mark.parametrize("text", ["\xe9,label\n1,2\n", "a,label\n1,\xe9\n2,f\n"])
def test_a_file_in_another_encoding_is_one_sentence(tmp_path, text):
    (tmp_path / "x.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(UcflError, match="is not UTF-8"):
        Users.from_folder(tmp_path)


def test_a_folder_of_two_kinds_of_files_is_refused(tmp_path):
    np.savez(tmp_path / "u.npz", x=np.zeros((4, 2)), y=np.zeros(4, int))
    (tmp_path / "v.csv").write_text("a,b,label\n1,2,1\n")
    with pytest.raises(UcflError, match=r"holds \.npz and \.csv files"):
        Users.from_folder(tmp_path)


def test_whole_numbers_are_amounts_where_a_folder_is_for_regression(tmp_path):
    (tmp_path / "x.csv").write_text("a,y\n" + "1,10\n2,20\n" * 5)
    (tmp_path / "z.csv").write_text("a,y\n" + "1,10.5\n2,20\n" * 5)
    with pytest.raises(UcflError, match="all of one kind"):
        Users.from_folder(tmp_path)
    scenario = find(str(tmp_path)).change({"objective": "regression"})
    users = scenario.build()
    assert users.classes == 0
    assert users.train.targets[0, : users.train.sizes[0]].unique().tolist() == [10.0, 20.0]


def test_users_with_other_columns_are_one_sentence(tmp_path):
    (tmp_path / "x.csv").write_text("a,label\n1,high\n")
    (tmp_path / "y.csv").write_text("b,label\n1,high\n")
    lacks = r"y\.csv has other columns than x\.csv \(it lacks 'a' and it also has 'b'\); give all"
    with pytest.raises(UcflError, match=lacks):
        Users.from_folder(tmp_path)
    (tmp_path / "y.csv").write_text("label,a\nhigh,1\n")
    with pytest.raises(UcflError, match=r"other columns than x\.csv \(another order\)"):
        Users.from_folder(tmp_path)


def test_a_target_that_is_no_column_is_one_sentence(tmp_path):
    (tmp_path / "x.csv").write_text("a,label\n1,high\n")
    with pytest.raises(UcflError, match=r"unknown column of x\.csv 'zzz'; choose one of: a, label"):
        Users.from_folder(tmp_path, target="zzz")
    with pytest.raises(UcflError, match="'lable'; did you mean 'label'"):
        Users.from_folder(tmp_path, target="lable")


def test_the_index_that_pandas_writes_is_no_input(tmp_path):
    rows = pd.DataFrame({"a": [0.5, 1.5, 0.0, 1.0] * 5, "label": ["low", "high"] * 10})
    rows.iloc[:10].to_csv(tmp_path / "x.csv")
    rows.iloc[10:].to_csv(tmp_path / "y.csv")  # counts on from 10
    with pytest.warns(UcflWarning, match=r"first column of x\.csv has no name and counts rows"):
        users = Users.from_folder(tmp_path)
    assert users.input_shape == (1,)
    assert find(str(tmp_path)).model == "mlp"  # without another word
    read = pd.read_csv(tmp_path / "x.csv").assign(user="x")
    with pytest.warns(UcflWarning, match="first column of the table has no name"):
        assert Users.from_frame(read).input_shape == (1,)
    (tmp_path / "y.csv").write_text(",a,label\n" + "3,1,low\n2,0,high\n" * 5)
    assert Users.from_folder(tmp_path).input_shape == (2,)  # it counts nothing there


@pytest.mark.parametrize(
    ("mine", "yours", "names"),
    [
        ([1, 2], [2, 3], ("1", "2", "3")),
        ([10, 9], [9, 2], ("2", "9", "10")),
        ([-1, 1], [1, 1], ("-1", "1")),
        ([0, 1], [1, 3], ("0", "1", "3")),
        ([0, 1], [2, 1], None),
    ],
)
def test_whole_numbers_of_a_table_are_classes_without_gaps(tmp_path, mine, yours, names):
    for user, labels_ in (("x", mine), ("y", yours)):
        table = pd.DataFrame({"a": [0.0, 1.0] * 2, "label": labels_ * 2})
        table.to_csv(tmp_path / f"{user}.csv", index=False)
    frame_ = pd.concat([pd.read_csv(tmp_path / f"{u}.csv").assign(user=u) for u in "xy"])
    for users in (
        Users.from_folder(tmp_path, held_out=0.0),
        Users.from_frame(frame_, held_out=0.0),
    ):
        assert users.class_names == names
        assert users.classes == len(names or (0, 1, 2))
        assert labels(users) == [[str(label) for label in each * 2] for each in (mine, yours)]
    plain = Users.from_folder(tmp_path, held_out=0.0, numbers=True)
    assert plain.train.targets.tolist() == [mine * 2, yours * 2]
    if min(mine) >= 0:  # as users on machines of their own number them
        same = Users.from_folder(tmp_path, held_out=0.0, renumber=False)
        assert same.class_names is None
        assert same.train.targets.tolist() == [mine * 2, yours * 2]


def test_users_that_are_too_small_to_validate_are_named():
    pairs = [(ROWS, [0, 1, 0, 1]), (ROWS[:2], [0, 1]), (ROWS[:3], [0, 1, 1])]
    with pytest.warns(UcflWarning, match="^ben: too few examples to keep any back"):
        Users.from_arrays(pairs, names=["anna", "ben", "carla"])
    Users.from_arrays(pairs, held_out=0.0)  # as it was asked for


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (
            {"income": [30_000.0, 90_000.0]},
            "'income' has a standard deviation of 3e.04, column 'a'",
        ),
        ({"year": [2001, 2003]}, "'year' has a mean of 2e.03 and a standard deviation of 1:"),
    ],
)
def test_inputs_of_very_different_scales_are_said_to_be(tmp_path, change, note):
    columns = {"a": [0.0, 1.0], "constant": [7, 7], **change, "label": ["low", "high"]}
    table = pd.DataFrame({name: values * 5 for name, values in columns.items()})
    table.to_csv(tmp_path / "x.csv", index=False)
    with pytest.warns(UcflWarning, match=note):
        Users.from_folder(tmp_path)
    with pytest.warns(UcflWarning, match=note):
        Users.from_frame(table.assign(user="x"))
    table.drop(columns=list(change)).to_csv(tmp_path / "x.csv", index=False)
    Users.from_folder(tmp_path)


def test_a_target_of_npz_files_has_no_effect_and_is_refused(tmp_path):
    np.savez(tmp_path / "u.npz", x=np.zeros((4, 2)), y=np.zeros(4, int))
    with pytest.raises(UcflError, match="leave it out"):
        Users.from_folder(tmp_path, target="y")


def test_data_sets_with_named_labels():
    data = [(torch.zeros(2), "cat"), (torch.ones(2), "dog")]
    assert Users.from_datasets([data], held_out=0.0).class_names == ("cat", "dog")


def test_pandas_is_not_imported_by_users():
    code = "import sys, ucfl.users; sys.exit('pandas' in sys.modules)"
    import subprocess

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UcflError, match="nowhere is no folder; give one with a file per user"):
        Users.from_folder(tmp_path / "nowhere")


def test_several_columns_that_may_be_the_target_are_remarked_on(tmp_path):
    """Both may be right: y is a coordinate, or the label again."""
    (tmp_path / "u.csv").write_text("x,y,label\n" + "0.5,1.5,1\n1.0,0.0,0\n" * 5)
    words = r"u\.csv has the columns 'label' and 'y': 'label' is learnt, and the rest is input"
    with pytest.warns(UcflWarning, match=words):
        assert Users.from_folder(tmp_path).input_shape == (2,)
    assert Users.from_folder(tmp_path, target="label").input_shape == (2,)


def test_the_target_column_is_a_field_of_the_scenario(tmp_path):
    folder = tmp_path / "data"
    write_csvs(folder, "level")
    with pytest.raises(UcflError, match="name it: --set target_column=COLUMN on the command line"):
        find(str(folder)).build()
    scenario = find(str(folder)).change({"target_column": "level"})
    assert scenario.model == "mlp"
    assert scenario.build().class_names == ("high", "low")
    run = ucfl.run(scenario, "fedavg", rounds=1, out=tmp_path / "r")
    assert ucfl.Run.open(run.folder).scenario.target_column == "level"
    with pytest.raises(
        UcflError, match=r"'target_column' names a column of \.csv files, so it has"
    ):
        find("rotated-mnist").change({"target_column": "level"})
    users = Users.from_folder(folder, target="level")
    given = ucfl.Scenario(target_column="level", model="mlp")
    with pytest.raises(UcflError, match="the users are there already, so 'target_column' has no"):
        ucfl.run(given, "fedavg", users=users, out=tmp_path / "g")


def test_arrays_that_nothing_would_use_are_refused(tmp_path):
    """Known mistake: a test set by another name was ignored, and one was made of training data."""
    x, y = np.zeros((10, 3)), np.arange(10) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, X_test=x, Y_test=y)
    with pytest.raises(UcflError, match=r"a\.npz holds 'X_test', which nothing would use"):
        Users.from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_train=x, y_train=y)
    with pytest.raises(UcflError, match="'x_train', which nothing would use"):
        Users.from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", x=x, y=y, group=1)
    np.savez(tmp_path / "b.npz", x=x, y=y)
    with pytest.raises(UcflError, match=r"b\.npz has no group, which other users have"):
        Users.from_folder(tmp_path)


def test_an_empty_list_of_labels_is_of_any_kind():
    """Known mistake: it was one of numbers, beside texts."""
    pairs = [(np.zeros((2, 3)), ["a", "b"]), (np.ones((2, 3)), ["b", "a"])]
    held = [([], []), (np.ones((1, 3)), ["a"])]
    users = Users.from_arrays(pairs, held, pairs)
    assert users.class_names == ("a", "b")
    assert users.validation.sizes.tolist() == [0, 1]


def test_truth_values_are_amounts():
    users = Users.from_arrays([(np.eye(4, dtype=bool), [0, 1, 0, 1])] * 2, held_out=0)
    assert users.train.inputs.dtype == torch.float32


def test_users_may_be_named_by_texts_and_numbers():
    frame = pd.DataFrame({"who": ["a", 1] * 10, "x": range(20), "label": [0, 0, 1, 1] * 5})
    assert Users.from_frame(frame, user="who").names == ("1", "a")


def test_drawn_users_without_validation_data_are_named():
    """Known mistake: their validation chose no round, and nothing said so."""
    with pytest.warns(UcflWarning, match="too few examples to keep any back for validation"):
        ucfl.Scenario(points=25, users=20).build(0)
