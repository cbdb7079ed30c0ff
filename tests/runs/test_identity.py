"""What a run is: continued only as what it was, and described as what it is."""

import shutil
import sys

import numpy as np
import pandas as pd
import pytest

import ucfl
from conftest import make_users
from runs.test_runs import QUICK, quick, write_users
from ucfl.cli.common import scenario_from
from ucfl.errors import UcflError
from ucfl.runs import Run, Stopped
from ucfl.runs.configuration import LATER
from ucfl.runs.folder import CONFIGURATION


def stopped(run, folder, at=2, **options):
    def interrupt(progress):
        if progress.round == at:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        run(folder, on_round=interrupt, **options)


def test_fields_that_came_later_are_named_where_they_are_set_so_that_folders_keep_their_names(
    tmp_path,
):
    fields = quick(tmp_path / "r").about["configuration"]["scenario"]
    assert not set(LATER) & set(fields)
    scenario = ucfl.Scenario(
        name="few", split="classes", classes_per_user=3, model="logistic", rounds=1
    )
    run = ucfl.run(scenario, "local", out=tmp_path / "few", device="cpu")
    assert run.about["configuration"]["scenario"]["classes_per_user"] == 3
    assert set(LATER) & set(run.about["configuration"]["scenario"]) == {"classes_per_user"}
    assert Run.open(tmp_path / "few").scenario.classes_per_user == 3


def test_another_precision_is_refused(tmp_path):
    stopped(quick, tmp_path / "r")
    before = (tmp_path / "r" / CONFIGURATION).read_bytes()
    with pytest.raises(UcflError, match=r"another configuration \(different precision\)"):
        quick(tmp_path / "r", resume=True, precision="bfloat16")
    assert (tmp_path / "r" / CONFIGURATION).read_bytes() == before
    quick(tmp_path / "r", resume=True)


def test_another_executor_goes_on_and_both_are_recorded(tmp_path):
    stopped(quick, tmp_path / "r", plain=True)
    first = Run.open(tmp_path / "r").about
    about = quick(tmp_path / "r", resume=True).about
    assert about["machine"] == first["machine"]
    assert about["machine"]["executor"].startswith("plain")
    assert [session["after_round"] for session in about["sessions"]] == [0, 2]
    assert about["sessions"][0] == first["sessions"][0]
    assert not about["sessions"][1]["machine"]["executor"].startswith("plain")


def test_the_same_data_elsewhere_goes_on_and_both_places_are_recorded(tmp_path):
    write_users(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")

    def run(folder, place="here", **options):
        scenario = ucfl.users.find(str(tmp_path / place)).change({"model": "mlp", "batch": 8})
        return ucfl.run(scenario, "fedavg", rounds=3, out=folder, **options)

    stopped(run, tmp_path / "r")
    resumed = run(tmp_path / "r", "there", resume=True)
    places = [session["dataset"] for session in resumed.about["sessions"]]
    assert places == [str(tmp_path / "here"), str(tmp_path / "there")]
    whole = run(tmp_path / "whole")
    pd.testing.assert_frame_equal(resumed.history, whole.history, check_exact=True)
    np.savez(tmp_path / "there" / "u9.npz", x=np.zeros((9, 12)), y=np.arange(9) % 3)
    with pytest.raises(UcflError, match="different data"):
        run(tmp_path / "r", "there", resume=True)


FACTORY = """
from torch import nn

class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head = nn.Linear(36, 5), nn.Linear(5, classes)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).{function}())

def make(shape, classes):
    return Model(classes)
"""
#: Where a row holds the body's bias.
BIAS = slice(36 * 5, 36 * 5 + 5)


def own_model(folder, monkeypatch, function="relu"):
    """A scenario with the person's model, read anew."""
    (folder / "mine.py").write_text(FACTORY.format(function=function))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return QUICK.change({"model": "mine:make"})


def test_another_forward_with_the_same_weights_is_refused(tmp_path, monkeypatch):
    users = make_users([20, 8, 13])

    def run(folder, function="relu", **options):
        scenario = own_model(tmp_path, monkeypatch, function)
        return ucfl.run(scenario, "fedavg", users=users, out=folder, **options)

    stopped(run, tmp_path / "r")
    with pytest.raises(UcflError, match=r"different forward\(\) of the model"):
        run(tmp_path / "r", "tanh", resume=True)
    assert run(tmp_path / "r", resume=True).checkpoint.round == 4


def test_a_persons_own_model_keeps_its_weights_and_this_is_said(tmp_path, monkeypatch):
    scenario, users = own_model(tmp_path, monkeypatch), make_users([9, 9])
    said = []
    run = ucfl.run(scenario, "fedavg", users=users, out=tmp_path / "r", on_note=said.append)
    assert run.about["scenario"]["initialisation"] == "own"
    assert run.about["configuration"]["scenario"]["initialisation"] == "own"
    assert sum("--set initialisation=he-glorot" in note for note in said) == 1
    assert ucfl.runs.federation(scenario, users=users).rows.initial[BIAS].all()
    said.clear()
    chosen = scenario.change({"initialisation": "he-glorot"})
    ucfl.run(chosen, "fedavg", users=users, out=tmp_path / "c", on_note=said.append)
    assert not any("initialisation" in note for note in said)
    assert not ucfl.runs.federation(chosen, users=users).rows.initial[BIAS].any()


def test_our_models_are_drawn_by_he_and_glorot_as_always(tmp_path):
    said = []
    run = quick(tmp_path / "r", on_note=said.append)
    assert run.about["scenario"]["initialisation"] == "he-glorot"
    assert not any("initialisation" in note for note in said)
    assert scenario_from("rotated-mnist", None, None, None).initialisation is None


def test_own_users_are_recorded_as_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ucfl.run(QUICK, "fedavg", users=make_users([20, 8, 13], groups=[0, 0, 1]))
    for fields in (run.about["scenario"], run.about["configuration"]["scenario"]):
        assert fields["dataset"] == "own users: arrays"
        assert (fields["users"], fields["groups"]) == (3, 2)
    assert run.scenario == Run.open(run.folder).scenario
    assert run.folder != ucfl.run(QUICK, "fedavg", users=make_users([20, 8])).folder
    with pytest.raises(UcflError, match="the users are there already, so 'rotations' has no"):
        ucfl.run("rotated-mnist", "fedavg", users=make_users([20, 8, 13, 9], groups=[0, 1, 2, 3]))


def test_a_folders_users_are_counted(tmp_path):
    write_users(tmp_path / "data", users=4)
    scenario = ucfl.users.find(str(tmp_path / "data")).change({"model": "mlp", "rounds": 1})
    run = ucfl.run(scenario, "fedavg", out=tmp_path / "r")
    assert run.about["scenario"]["users"] == 4
    again = ucfl.run(run.scenario, "fedavg", out=tmp_path / "again")
    pd.testing.assert_frame_equal(again.history, run.history, check_exact=True)
