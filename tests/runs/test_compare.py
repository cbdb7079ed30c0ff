"""Comparisons of a person's own users, models and methods beside ours."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import ucfl
from commands import run_ucfl
from conftest import make_users
from runs.test_runs import write_users
from ucfl.algorithms import REGISTRY, find
from ucfl.algorithms.fedprox import FedProx
from ucfl.errors import UcflError
from ucfl.report import gather
from ucfl.runs import Question, Run

SCENARIO = ucfl.Scenario(name="mine", lr=0.05, batch=8, rounds=2)
pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # alike users


class Mine(FedProx):
    """A method of one's own."""


def flat_linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


def test_own_users_model_and_methods_beside_names(tmp_path):
    users = make_users([20, 8, 13])
    result = ucfl.compare(
        SCENARIO,
        [Mine(mu=0.5), Mine, "fedavg"],
        seeds=[0, 1],
        users=users,
        model=flat_linear,
        out=tmp_path,
    )
    assert set(result.to_json()["algorithms"]) == {"Mine:mu=0.5", "Mine", "fedavg"}
    alone = ucfl.run(SCENARIO, "fedavg", users=users, model=flat_linear, out=tmp_path / "alone")
    one = result.runs["fedavg"][0]
    assert torch.equal(one.checkpoint.state["theta"], alone.checkpoint.state["theta"])
    again = Run.open(one.folder)
    assert again.scenario == one.scenario
    assert again.scenario.model == f"{__name__}:flat_linear"


def test_a_module_is_stored_by_its_name_and_resumed_when_it_is_given_again(tmp_path):
    torch.manual_seed(0)
    users, model = make_users([20, 8, 13]), flat_linear()
    before = model[1].weight.clone()
    scenario = SCENARIO.change({"model": model})
    run = ucfl.run(scenario, "fedavg", users=users, out=tmp_path / "r")
    assert torch.equal(model[1].weight, before)
    assert Run.open(run.folder).scenario.model == "own model: Sequential"
    longer = {"users": users, "out": tmp_path / "r", "resume": True, "rounds": 3}
    assert ucfl.run(scenario, "fedavg", **longer).checkpoint.round == 3
    with pytest.raises(UcflError, match="given by hand"):
        ucfl.run(run.scenario, "fedavg", **longer)
    with torch.no_grad():
        model[1].weight += 1
    with pytest.raises(UcflError, match="different model"):
        ucfl.run(scenario, "fedavg", **longer)


def test_a_model_that_is_none_is_one_sentence():
    with pytest.raises(UcflError, match=r"a model is a name, a torch\.nn\.Module, or a function"):
        ucfl.Scenario(model=3)


def test_who_takes_part_may_be_a_function(tmp_path):
    result = ucfl.compare(
        SCENARIO,
        ["fedavg"],
        users=make_users([20, 8, 13]),
        model="logistic",
        participation=lambda t: [t % 3],
        out=tmp_path,
    )
    assert result.runs["fedavg"][0].checkpoint.cohorts.int().tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.fixture
def two_methods():
    """The registry with two methods; afterwards as it was, in its order, which tables follow."""
    every = dict(REGISTRY)
    for name in set(REGISTRY) - {"oracle", "local"}:
        del REGISTRY[name]
    yield
    REGISTRY.clear()
    REGISTRY.update(every)


@pytest.mark.usefixtures("two_methods")
def test_a_method_that_cannot_serve_every_seed_is_in_no_row(tmp_path, monkeypatch):
    """Means over other seeds than the others' would be compared with theirs."""

    def only_seed_0(algorithm, fed):
        if algorithm.name == "oracle" and fed.seed:
            raise UcflError("not these users.")

    module = sys.modules["ucfl.runs.compare"]  # the package's name for it is the function's
    monkeypatch.setattr(module, "check_served", only_seed_0)
    users = make_users([9, 9], groups=[0, 1])
    result = ucfl.compare(
        SCENARIO, seeds=[0, 1], users=users, model="logistic", rounds=1, out=tmp_path
    )
    assert set(result.to_json()["algorithms"]) == {"local"}


@pytest.mark.usefixtures("two_methods")
def test_all_are_those_that_can_serve_the_users(tmp_path):
    said = []
    options = {"model": "logistic", "on_note": said.append}
    without = ucfl.compare(SCENARIO, users=make_users([9, 9]), out=tmp_path / "a", **options)
    assert list(without.runs) == ["local"]
    assert said[0].startswith("oracle is left out: the oracle needs the users' true groups")
    groups = make_users([9, 9], groups=[0, 1])
    assert set(ucfl.compare(SCENARIO, users=groups, out=tmp_path / "b", **options).runs) == {
        "oracle",
        "local",
    }
    with pytest.raises(UcflError, match="true groups"):
        ucfl.compare(SCENARIO, ["oracle"], users=make_users([9, 9]), out=tmp_path / "c", **options)


def test_a_folder_is_compared_with_the_defaults(tmp_path):
    write_users(tmp_path / "data", points=20)
    done = run_ucfl(
        "compare", "data", "--model", "logistic", "--rounds", 1, "--json", cwd=tmp_path, check=True
    )
    assert set(json.loads(done.stdout)["algorithms"]) == set(REGISTRY) - {
        "oracle",
        *("fedper", "fedrep", "lg-fedavg", "fedbabu"),  # one layer
        "fedbn",  # which is no normalisation
    }
    assert "oracle is left out" in done.stderr


def test_users_may_be_a_folder(tmp_path):
    write_users(tmp_path / "data")
    given = ucfl.Users.from_folder(tmp_path / "data")
    expected = ucfl.run(SCENARIO, "fedavg", users=given, model="mlp", out=tmp_path / "a")
    for number, folder in enumerate((tmp_path / "data", str(tmp_path / "data"))):
        out = tmp_path / str(number)
        run = ucfl.run(SCENARIO, "fedavg", users=folder, model="mlp", out=out)
        assert run.about["configuration"] == expected.about["configuration"]


@pytest.mark.parametrize(
    ("users", "sentence"),
    [
        ("nowhere", "users='nowhere' is no folder; give one with a file per user"),
        ([([[1.0]], [0])], "users= takes ucfl.Users or a folder, and not a list; make them with"),
    ],
)
def test_what_are_no_users_is_one_sentence(tmp_path, users, sentence):
    with pytest.raises(UcflError, match=sentence):
        ucfl.run(SCENARIO, "fedavg", users=users, out=tmp_path / "r")
    with pytest.raises(UcflError, match=sentence):
        ucfl.compare(SCENARIO, ["fedavg"], users=users, out=tmp_path)


def test_a_comparison_says_what_it_is(tmp_path):
    users = make_users([20, 8, 13])
    found = ucfl.compare(
        SCENARIO, ["fedavg", "local"], seeds=[0, 1], users=users, model="mlp", out=tmp_path
    )
    first, heads, *rows = str(found).splitlines()
    assert first == "Comparison: 2 methods on mine, seeds 0, 1, accuracy in %"
    assert heads.split("  ")[0] == "method"
    table = found.to_json()["algorithms"]
    assert [row.split()[0] for row in rows] == list(table)
    for row in rows:
        one = table[row.split()[0]]
        for who in ("mean", "worst"):
            assert f"{one[who]['final']:.1f}" in row
            assert f"{one[who]['best']:.1f}" in row
    (found.runs["local"][0].folder / "history.parquet").unlink()
    for run in found.runs["local"]:
        vars(run).pop("history", None)
    assert "history.parquet cannot be read" in repr(found)


def compare(out, scenario=SCENARIO, algorithms=("fedavg",), **options):
    """The notes of a comparison on three users, and its runs' folders."""
    said = []
    given = {"users": make_users([20, 8, 13]), "model": "logistic", **options}
    found = ucfl.compare(scenario, algorithms, out=out, on_note=said.append, **given)
    return said, [run.folder for runs in found.runs.values() for run in runs]


def test_a_longer_comparison_in_the_same_folder_is_remarked_on_before_it_is_trained(tmp_path):
    """The tutorial's three rounds, then thirty: nothing is lost, but no report takes both."""
    quiet, (short,) = compare(tmp_path, rounds=1)
    assert not [note for note in quiet if "--out" in note]
    said, (long,) = compare(tmp_path, rounds=2)
    assert said[0] == (
        f"{short} and {long} are both fedavg with seed 0, of 1 and 2 rounds: every run is kept, "
        "but report and figure refuse a folder of both; --out with another folder keeps new runs "
        "apart."
    )
    reason = (
        f"{short} and {long} are both fedavg with seed 0, of 1 and 2 rounds; give the folders of "
        r"runs that belong together, or move the others elsewhere \(--out with another"
    )
    for refused in (lambda: gather([tmp_path]), lambda: Question.from_runs(tmp_path)):
        with pytest.raises(UcflError, match=reason):
            refused()
    assert gather([long])["fedavg"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"scenario": SCENARIO.change({"lr": 0.1})}, "their scenarios differ in lr"),
        (
            {"scenario": SCENARIO.change({"lr": 0.1, "name": "other"}), "algorithms": ["local"]},
            r"their scenarios \(mine and other\) differ in lr",
        ),
        (
            {"users": make_users([20, 8, 12]), "algorithms": ["local"]},
            "they have different users' data for seed 0",
        ),
    ],
)
def test_runs_of_another_scenario_or_data_in_the_folder_are_remarked_on(tmp_path, change, what):
    _, (first,) = compare(tmp_path)
    said, (second,) = compare(tmp_path, **change)
    assert re.match(f"{first} and {second} cannot be compared: {what}: every run is kept", said[0])
    with pytest.raises(UcflError, match=f"cannot be compared: {what}; give the folders"):
        gather([tmp_path])


def test_runs_that_belong_together_are_not_remarked_on(tmp_path):
    compare(tmp_path, seeds=[0])
    said, _ = compare(tmp_path, algorithms=["local", "fedavg"], seeds=[0, 1])
    assert not [note for note in said if "cannot be compared" in note or "are both" in note]
    assert {label: len(runs) for label, runs in gather([tmp_path]).items()} == {
        "fedavg": 2,
        "local": 2,
    }


def test_a_remark_on_the_model_is_said_once_in_a_comparison(tmp_path):
    options = {"model": flat_linear, "algorithms": ["fedavg", "local"], "seeds": [0, 1]}
    said, _ = compare(tmp_path, **options)
    assert sum("initialisation = own" in note for note in said) == 1


@pytest.mark.parametrize("one", ["fedavg", FedProx(mu=0.5), Mine], ids=["name", "object", "class"])
def test_one_algorithm_is_a_list_of_one(tmp_path, one):
    users = make_users([9, 9])
    options = {"users": users, "model": "logistic", "rounds": 1, "out": tmp_path}
    assert list(ucfl.compare(SCENARIO, one, **options).runs) == [find(one).label]


def test_algorithms_come_in_any_collection(tmp_path):
    users = make_users([9, 9])
    options = {"users": users, "model": "logistic", "rounds": 1}
    names = {"fedavg": 1, "local": 2}
    for i, given in enumerate((names, names.keys(), set(names), (name for name in names))):
        assert set(ucfl.compare(SCENARIO, given, out=tmp_path / str(i), **options).runs) == {*names}


@pytest.mark.parametrize("seeds", [3, "0-4", [0.5], ["0"]])
def test_seeds_that_are_no_list_of_numbers_are_one_sentence(tmp_path, seeds):
    words = f"seeds={seeds!r} is no list of whole numbers: write seeds=[3] for the seed 3 alone, or"
    with pytest.raises(UcflError, match=re.escape(words)):
        ucfl.compare(SCENARIO, ["fedavg"], seeds=seeds, users=make_users([9, 9]), out=tmp_path)


def test_seeds_may_be_a_range_or_an_array(tmp_path):
    options = {"users": make_users([9, 9]), "model": "logistic", "rounds": 1}
    for name, seeds in {"a": range(2), "b": np.arange(2)}.items():
        found = ucfl.compare(SCENARIO, "local", seeds=seeds, out=tmp_path / name, **options)
        assert found.seeds == (0, 1)


def test_a_seed_that_is_no_number_is_one_sentence(tmp_path):
    with pytest.raises(UcflError, match=r"a seed is a whole number from 0 to \d+, not '1'"):
        ucfl.run("rotated-mnist", "fedavg", seed="1", out=tmp_path)


def test_a_folder_is_split_anew_for_each_seed_and_given_users_are_not(tmp_path):
    """What docs/own-data.md says of held-out examples."""
    write_users(tmp_path / "data")
    given = ucfl.Users.from_folder(tmp_path / "data")
    splits = {}
    for name, scenario, users in (
        ("scenario", str(tmp_path / "data"), None),
        ("folder", SCENARIO, tmp_path / "data"),
        ("users", SCENARIO, given),
    ):
        options = {"users": users, "model": "mlp", "rounds": 1, "out": tmp_path / name}
        found = ucfl.compare(scenario, "local", seeds=[0, 1], **options)
        splits[name] = {run.about["configuration"]["data"] for run in found.runs["local"]}
    assert {name: len(each) for name, each in splits.items()} == {
        "scenario": 2,
        "folder": 2,
        "users": 1,
    }
