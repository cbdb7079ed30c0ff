"""Users' models out of a run: what a user would deploy is what the run evaluated."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import ucfl
from conftest import model_for
from ucfl.algorithms import REGISTRY, find
from ucfl.cli import app
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs import Run, starting
from ucfl.runs.deployment import file_names
from ucfl.users import Scenario, Users

NAMES = ["anna", "ben", "carla", "dora", "emil"]
SIZES, TESTS = (40, 24, 9, 33, 17), (31, 12, 7, 25, 40)


def small_convolutions(shape, classes):
    """A model with batch normalisation and dropout."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(6 * (shape[1] - 2) * (shape[2] - 2), classes),
    )


BATCH_NORM = "runs.test_deployment:small_convolutions"


def raw_data(kind, seed=0):
    """(train, test) pairs of every user: two groups that call the four classes otherwise."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(4, 1, 6, 6))

    def draw(user, n):
        meaning = rng.integers(0, 4, n)
        x = patterns[meaning] + 0.8 * rng.normal(size=(n, 1, 6, 6))
        x = np.clip(60 * x + 128, 0, 255).astype(np.uint8) if kind == "uint8" else x.astype(kind)
        return x, (meaning + 2 * (user % 2)) % 4

    train = [draw(user, n) for user, n in enumerate(SIZES)]
    return train, [draw(user, n) for user, n in enumerate(TESTS)]


def trained(folder, algorithm="fedavg", kind="float64", model="mlp", **options):
    """A run, and every user's raw test data."""
    train, test = raw_data(kind)
    users = Users.from_arrays(
        train, test, test, groups=[0, 1, 0, 1, 0], names=options.pop("names", NAMES)
    )
    scenario = Scenario(name="small", model=model, lr=0.05, batch=8, rounds=3)
    return ucfl.run(scenario, algorithm, users=users, out=folder, **options), test


def right_answers(module, pair):
    """How many examples a module gets right, in plain PyTorch."""
    x, y = map(torch.from_numpy, pair)
    with torch.no_grad():
        return int((module(x).argmax(-1) == y).sum())


def recorded(run, user):
    """The same, by the run's history."""
    return float(run.per_user("test_accuracy")[-1, user]) * TESTS[user]


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # few users, all alike
@pytest.mark.parametrize(
    ("kind", "model", "participation"),
    [
        ("float64", "mlp", 1.0),
        ("uint8", BATCH_NORM, "3 users"),
        pytest.param("float64", "mlp", "3 users", marks=pytest.mark.long),
        pytest.param("uint8", BATCH_NORM, 1.0, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("algorithm", REGISTRY)
def test_the_model_of_every_user_is_the_one_that_the_run_evaluated(
    tmp_path, algorithm, kind, model, participation
):
    model = model_for(algorithm, model)
    run, test = trained(tmp_path / "r", algorithm, kind, model, participation=participation)
    for opened in (run, Run.open(run.folder)):
        found = [right_answers(opened.model(user), pair) for user, pair in enumerate(test)]
        assert found == pytest.approx([recorded(run, user) for user in range(5)], abs=1e-4)


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "fedem", "fedmoe"])
def test_models_of_numbers_are_those_that_the_run_evaluated_too(tmp_path, algorithm):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 5)) for n in (30, 12, 21)]
    pairs = [(each, each[:, :2] * sign) for each, sign in zip(x, (1, -1, 1), strict=True)]
    users = Users.from_arrays(pairs, pairs, pairs)
    scenario = Scenario(
        name="numbers", objective="regression", model="mlp", lr=0.01, batch=8, rounds=3
    )
    run = Run.open(ucfl.run(scenario, algorithm, users=users, out=tmp_path / "r").folder)
    for user, (inputs, targets) in enumerate(pairs):
        with torch.no_grad():
            found = run.model(user)(torch.from_numpy(inputs))
        error = (found - torch.from_numpy(targets)).square().mean()
        assert float(error) == pytest.approx(run.split("test")[-1, user], rel=1e-5)
    assert ", squared error: mean " in repr(run)
    worst = run.names[int(run.split("test")[-1].argmax())]
    assert f"({worst}), folder" in repr(run)


class Own(nn.Module):
    """A person's own: the last layer comes first, and two others share their weights."""

    def __init__(self, width=36):
        super().__init__()
        self.last = nn.Linear(width, 4)
        self.first = nn.Linear(36, width)
        self.again = nn.Linear(36, width)
        self.again.weight = self.first.weight

    def forward(self, x):
        x = x.flatten(1)
        return self.last(torch.relu(self.again(torch.relu(self.first(x)))))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of a model that nobody can make by name, as a new process opens it."""
    train, test = raw_data("float64")
    users = Users.from_arrays(train, test, test, names=NAMES)
    scenario = Scenario(name="own", model="mlp", lr=0.05, batch=8, rounds=2)
    scenario = scenario.serving(users, given=True)
    fed = ucfl.Federation(users, Own().double(), training=ucfl.LocalTraining(lr=0.05, batch=8))
    folder = tmp_path_factory.mktemp("own") / "r"
    here = starting.train(scenario, find("fedavg"), fed, users, out=folder)
    expected = [
        right_answers(here.model(name), pair) for name, pair in zip(NAMES, test, strict=True)
    ]
    assert expected == pytest.approx([recorded(here, user) for user in range(5)], abs=1e-4)
    return Run.open(folder), test, expected


def test_a_model_of_ones_own_is_given_again_in_a_new_process(own):
    run, test, expected = own
    given = Own().double()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    found = [run.model(name, model=given) for name in NAMES]
    assert [right_answers(*pair) for pair in zip(found, test, strict=True)] == expected
    assert all(torch.equal(before[name], value) for name, value in given.state_dict().items())


class Swapped(Own):
    """The same tensors in another order: as many numbers."""

    def __init__(self):
        super().__init__()
        self.last = self._modules.pop("last")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (None, "no parameter or buffer 'last.weight' of shape"),
        (Own(width=20).double(), r"'last.weight' of shape \(4, 36\); give the one that was"),
        (nn.Sequential(Own(), nn.Linear(4, 4)), "no parameter or buffer 'last.weight'"),
        (Swapped().double(), "another order of them"),
        (Own(), "in torch.float64 is none of this model"),
        (Own, "such as MyModel.., or 'module:factory', and not a type"),
    ],
)
def test_another_model_than_the_one_that_was_trained_is_refused(own, given, word):
    with pytest.raises(UcflError, match=word):
        own[0].model("anna", model=given)


@pytest.mark.parametrize(
    ("user", "word"),
    [
        ("ana", "unknown user 'ana'; did you mean 'anna' or 'carla'?"),
        ("zz", "unknown user 'zz'; there are anna, ben, carla, dora, emil."),
        ("x" * 500, "unknown user 'xxx"),
        (5, "unknown user 5; users are numbered from 0 to 4"),
        (-1, "unknown user -1"),
        (True, "unknown user True"),
        (1.0, "by its name or its number, not by a float"),
        (None, "not by a NoneType"),
    ],
)
def test_an_unknown_user_is_one_sentence(own, user, word):
    with pytest.raises(UcflError) as error:
        own[0].model(user)
    assert word in str(error.value)
    assert len(str(error.value)) < 200


def test_a_user_is_known_by_number_and_by_name(tmp_path):
    run, _ = trained(tmp_path / "r", "local")
    assert run.names == NAMES
    for user, name in enumerate(NAMES):
        pair = run.model(user).state_dict(), run.model(name).state_dict()
        assert all(torch.equal(pair[0][key], pair[1][key]) for key in pair[0])
    assert run.model(np.int64(2)) is not run.model(2)


@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_a_model_takes_the_users_data_alone(tmp_path, kind):
    """Not what was scaled already, or was not: that would be answered, and wrongly."""
    run, test = trained(tmp_path / "r", kind=kind)
    module, x = run.model("anna"), torch.from_numpy(test[0][0])
    assert not module.training
    other = x.float() / 255 if kind == "uint8" else x.to(torch.uint8)
    with pytest.raises(UcflError, match="give them as they are in the users' data"):
        module(other)
    before = x.clone()
    single = module(x)
    assert torch.equal(x, before)
    assert torch.allclose(module.double()(x).float(), single, atol=1e-5)


def test_taking_a_model_draws_no_random_numbers(tmp_path):
    run, _ = trained(tmp_path / "r", "fedmoe")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run.model(0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("algorithm", ["local", "fedem", "fedmoe"])
def test_saved_models_are_loaded_again(tmp_path, algorithm):
    run, test = trained(tmp_path / "r", algorithm, "uint8", BATCH_NORM)
    folder = run.save_models(tmp_path / "models")
    index = json.loads((folder / "models.json").read_text())
    assert index["files"] == {name: f"{name}.safetensors" for name in NAMES}
    assert sorted(p.name for p in folder.iterdir()) == [
        *sorted(index["files"].values()),
        "models.json",
    ]
    assert index["inputs"] == {"shape": [1, 6, 6], "type": "uint8"}
    module = Run.open(run.folder).model(0)
    for user, name in enumerate(NAMES):
        module.load_state_dict(load_file(folder / index["files"][name]))
        assert right_answers(module, test[user]) == pytest.approx(recorded(run, user), abs=1e-4)


def test_the_index_says_code_that_loads(tmp_path, monkeypatch):
    run, test = trained(tmp_path / "r", "local")
    monkeypatch.chdir(run.save_models(tmp_path / "models"))
    scope = {}
    exec("\n".join(json.loads(Path("models.json").read_text())["load"]), scope)
    assert right_answers(scope["model"], test[0]) == pytest.approx(recorded(run, 0), abs=1e-4)


def own_again():
    """What makes the model of the run ``own``, whose test cannot import it by another name."""
    return Own().double()


AGAIN = f"{__name__}:own_again"


def test_the_index_says_code_that_loads_a_model_of_ones_own(own, tmp_path, monkeypatch):
    run, test, expected = own
    named = run.save_models(tmp_path / "named", model=AGAIN)
    load = json.loads((named / "models.json").read_text())["load"]
    assert f"model={AGAIN!r})" in load[2]
    monkeypatch.chdir(named)
    scope = {}
    exec("\n".join(load), scope)
    assert right_answers(scope["model"], test[0]) == expected[0]


def test_a_module_that_was_given_is_given_again_in_the_index_and_by_export(tmp_path, monkeypatch):
    train, test = raw_data("float64")
    users = Users.from_arrays(train, test, test, names=NAMES)
    scenario = Scenario(name="own", lr=0.05, batch=8, rounds=1)
    here = ucfl.run(scenario, "fedavg", users=users, model=Own(), out=tmp_path / "r")
    index = here.save_models(tmp_path / "here") / "models.json"
    load = json.loads(index.read_text())["load"]
    assert load[2].startswith("# mine: your own model (Own)")
    assert load[3].endswith(".model('anna', model=mine)")
    scope = {"mine": Own()}
    monkeypatch.chdir(index.parent)
    exec("\n".join(load), scope)
    assert right_answers(scope["model"], test[0]) == pytest.approx(recorded(here, 0), abs=1e-4)
    (tmp_path / "mine.py").write_text(f"from {__name__} import Own\n")
    monkeypatch.chdir(tmp_path)
    export = ["export", "models", "r", "--to", "there"]
    refused = CliRunner().invoke(app, export)
    assert "give it again, as model=MyModel() (in Python) or --model module:" in str(
        refused.exception
    )
    assert CliRunner().invoke(app, [*export, "--model", "mine:Own"]).exit_code == 0
    load = json.loads(Path("there/models.json").read_text())["load"]
    assert "model='mine:Own')" in load[2]
    refused = CliRunner().invoke(app, ["export", "mlflow", "r", "--model", "mine:Own"])
    assert "--model has no effect on mlflow" in str(refused.exception)


def test_saved_models_say_what_their_classes_are_called(tmp_path):
    pairs = [(np.eye(4).repeat(5, 0), np.repeat(["ant", "bee", "cow", "dog"], 5))] * 2
    scenario = Scenario(name="named", model="mlp", batch=8, rounds=1)
    run = ucfl.run(scenario, "fedavg", users=Users.from_arrays(pairs), out=tmp_path / "r")
    index = json.loads((run.save_models(tmp_path / "m") / "models.json").read_text())
    assert index["class_names"] == ["ant", "bee", "cow", "dog"]
    run, _ = trained(tmp_path / "s")
    index = json.loads((run.save_models(tmp_path / "n") / "models.json").read_text())
    assert index["class_names"] is None  # labels were numbers


def test_tied_parameters_are_saved(own, tmp_path):
    run, test, expected = own
    folder = run.save_models(tmp_path / "models", model=Own().double())
    module = run.model(0, model=Own().double())
    module.load_state_dict(load_file(folder / "ben.safetensors"))
    assert right_answers(module, test[1]) == expected[1]


def test_saved_models_are_replaced_when_that_is_asked_for_and_nothing_else_is(tmp_path):
    run, _ = trained(tmp_path / "r")
    folder = run.save_models(tmp_path / "models")
    with pytest.raises(UcflError, match="holds models already; replace them with fresh=True"):
        run.save_models(folder)
    (folder / "mine.txt").write_text("mine")
    other, _ = trained(tmp_path / "s", names=["fay", *NAMES[1:]])
    other.save_models(folder, fresh=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        "ben.safetensors", "carla.safetensors", "dora.safetensors", "emil.safetensors",
        "fay.safetensors", "mine.txt", "models.json",
    ]  # fmt: skip
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "x").touch()
    with pytest.raises(UcflError, match=r"else holds no models \(x\); give a folder of its own"):
        run.save_models(tmp_path / "else", fresh=True)
    run.save_models(tmp_path / "several" / "one")
    words = r"several holds models of several runs, in a folder for each \(one\); give a folder of"
    with pytest.raises(UcflError, match=words):
        run.save_models(tmp_path / "several")
    with pytest.raises(UcflError, match="is a file"):
        run.save_models(tmp_path / "else" / "x")
    (folder / "models.json").write_text("[]")
    with pytest.raises(UcflError, match=r"models.json is damaged .* give another folder"):
        run.save_models(folder, fresh=True)


def test_files_are_named_after_users_whatever_those_are_called():
    users = ["anna", "Anna", "../../etc/passwd", "a/b", "a b", "..", "", "user", "x" * 500, "Zoë"]
    names = file_names(users)
    assert names[0] == "anna.safetensors"
    assert names[-1] == "Zoë.safetensors"
    assert len({name.casefold() for name in names}) == len(users)
    assert all(len(name) < 100 and Path(name).name == name and name[0] != "." for name in names)


def test_the_model_of_a_user_that_diverged_is_given_with_a_warning(tmp_path):
    train, test = raw_data("float64")
    train[1] = (1e30 * train[1][0], train[1][1])
    users = Users.from_arrays(train, test, test, names=NAMES)
    scenario = Scenario(name="small", model="mlp", lr=0.05, batch=8, rounds=2)
    run = ucfl.run(scenario, "local", users=users, out=tmp_path / "r")
    with pytest.warns(UcflWarning, match="the training of ben diverged in round 1"):
        run.model("ben")
    with pytest.warns(UcflWarning, match="ben diverged"):
        run.save_models(tmp_path / "models")


def test_a_run_that_does_not_say_what_its_inputs_were_is_one_sentence(tmp_path):
    run, _ = trained(tmp_path / "r")
    about = json.loads((run.folder / "run.json").read_text())
    del about["input_shape"], about["format"], about["sha256"]
    (run.folder / "run.json").write_text(json.dumps(about))
    with pytest.raises(UcflError, match="earlier version, which did not store its input_shape"):
        Run.open(run.folder).model(0)


def test_a_run_says_what_it_is(tmp_path):
    run, _ = trained(tmp_path / "r", "user-centric:streams=2")
    final = run.per_user("test_accuracy")[-1]
    summary = run.summary
    assert repr(run) == (
        "Run: user-centric:streams=2 on small, seed 0, 3 of 3 rounds, accuracy in %: "
        f"mean {summary['mean']['final']:.1f} (best {summary['mean']['best']:.1f}), "
        f"worst {summary['worst']['final']:.1f} ({NAMES[int(final.argmin())]}), "
        f"folder {run.folder}"
    )
    assert repr(Run.open(run.folder)) == repr(run)
    (run.folder / "history.parquet").unlink()
    assert "history.parquet cannot be read" in repr(Run.open(run.folder))
