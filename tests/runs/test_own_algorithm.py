"""A method in a person's own file is a full citizen: the page's example, in real processes."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import ucfl
from commands import run_ucfl, ucfl_command
from conftest import make_users
from runs.test_runs import QUICK, write_users
from stories import learnt_first
from ucfl import report
from ucfl.algorithms import Collaboration
from ucfl.algorithms.fedavg import FedAvg
from ucfl.cli import app
from ucfl.errors import UcflError
from ucfl.runs import Question, Run, Stopped
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION

PAGE = Path(__file__).parents[2] / "docs" / "own-algorithm.md"
#: Threads decide how sums are rounded; one is the same everywhere.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def the_pages_method():
    return re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def ucfl_in(folder, *arguments, check=True):
    return run_ucfl(*arguments, cwd=folder, check=check, **ENVIRONMENT)


def killed_after_some_rounds(folder, *arguments):
    """Start a run and kill it, once it has stored a round and before it has stored the last."""
    command = ucfl_command(*arguments)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, **quiet)
    while not (folder / "killed" / CHECKPOINT).exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_the_example_has_twenty_lines():
    lines = [line.strip() for line in the_pages_method().splitlines()]
    assert len([line for line in lines if line and not line.startswith('"""')]) <= 20


def test_the_pages_method_runs_is_killed_resumes_and_is_compared_and_reported(tmp_path):
    (tmp_path / "mymethod.py").write_text(the_pages_method())
    write_users(tmp_path / "data")
    run = ["run", "data", "--algorithm", "mymethod:MyMethod", "--model", "mlp", "--set", "batch=4"]
    run += ["--rounds", 40, "--checkpoint-seconds", 0, "--json", "--out"]

    whole = json.loads(ucfl_in(tmp_path, *run, "whole").stdout)
    assert whole["algorithm"] == "MyMethod"
    killed_after_some_rounds(tmp_path, *run, "killed")
    assert 0 < Run.open(tmp_path / "killed").checkpoint.round < 40
    ucfl_in(tmp_path, *run, "killed", "--resume")
    one, two = (Run.open(tmp_path / name) for name in ("whole", "killed"))
    pd.testing.assert_frame_equal(one.history, two.history, check_exact=True)
    for name, value in one.checkpoint.state.items():
        same = two.checkpoint.state[name]
        assert torch.equal(value, same) if torch.is_tensor(value) else value == same

    names = "mymethod:MyMethod:width=0.5,fedavg,local"
    compare = ["compare", "data", "--algorithms", names, "--model", "mlp", "--rounds", 3, "--json"]
    table = json.loads(ucfl_in(tmp_path, *compare, "--out", "runs").stdout)["algorithms"]
    assert set(table) == {"MyMethod:width=0.5", "fedavg", "local"}
    assert table["MyMethod:width=0.5"]["tested_model"] == "personalised"

    (tmp_path / "mymethod.py").unlink()  # what follows reads what is stored
    reports_on(tmp_path / "runs", "MyMethod:width=0.5", set(table))
    follow = [progress.round for progress in report.follow(tmp_path / "killed")]
    assert follow == list(range(1, 41))
    refused = ucfl_in(tmp_path, *run, "killed", "--resume", check=False)
    assert refused.returncode == 2
    assert "could not be loaded" in refused.stderr


def reports_on(folder, label, labels):
    """What ``ucfl report``, ``plan`` and ``figure`` do with runs, in this process."""
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    story = report.tell(report.gather([folder]))
    assert report.page(story) == (folder / "report.html").read_text()
    assert {method["label"] for method in story["methods"]} == labels
    panel = learnt_first(story["populations"][0])
    assert panel["of"] == label
    assert len(panel["weights"]) == 6
    assert panel["silhouettes"]
    plan = json.loads(CliRunner().invoke(app, ["plan", str(folder), "--json"]).stdout)
    assert label in plan["times"]["algorithms"]
    figure = ["figure", "weights", str(folder), "--out", str(folder / "weights.svg")]
    assert CliRunner().invoke(app, figure).exit_code == 0
    assert (folder / "weights.svg").exists()


def local_class(weights=None):
    """A class that no other process can import."""

    class InANotebook(FedAvg):
        def collaboration(self, state):
            return None if weights is None else Collaboration.of(weights)

    return InANotebook


def quick(out, algorithm, **options):
    users = make_users([20, 8, 13], groups=[0, 0, 1])
    return ucfl.run(QUICK, algorithm, **{"out": out, "users": users, **options})


def test_a_class_of_a_notebook_is_reported_though_it_cannot_be_imported(tmp_path):
    kind = local_class(torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1.0]]))
    quick(tmp_path / "mine", kind)
    quick(tmp_path / "fedavg", "fedavg")
    again = Run.open(tmp_path / "mine")
    assert again.algorithm == kind().facts
    assert again.collaboration.weights[0].tolist() == [0.5, 0.5, 0]
    told = report.tell(report.gather([tmp_path]))
    assert {method["label"] for method in told["methods"]} == {"InANotebook", "fedavg"}
    assert learnt_first(told["populations"][0])["of"] == "InANotebook"
    assert Question.from_runs(tmp_path).weights.shape == (3, 3)
    with pytest.raises(UcflError, match="could not be loaded"):
        again.load_algorithm()
    assert Run.open(tmp_path / "fedavg").load_algorithm() == FedAvg()


def test_an_object_resumes_what_it_began(tmp_path):
    algorithm = local_class()()

    def interrupt(progress):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        quick(tmp_path / "r", algorithm, on_round=interrupt)
    resumed = quick(tmp_path / "r", algorithm, resume=True)
    expected = quick(tmp_path / "whole", "fedavg")
    pd.testing.assert_frame_equal(resumed.history, expected.history, check_exact=True)


def test_a_method_that_was_rewritten_meanwhile_is_said_to_be(tmp_path, monkeypatch):
    text = "from ucfl.algorithms.fedavg import FedAvg\nclass Mine(FedAvg):\n    version = 1\n"
    monkeypatch.chdir(tmp_path)
    Path("before_edit.py").write_text(text)
    Path("after_edit.py").write_text(text.replace("version = 1", "version = 2"))

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(Stopped):
        quick(tmp_path / "r", "before_edit:Mine", on_round=interrupt)
    said = []
    quick(tmp_path / "r", "after_edit:Mine", resume=True, on_note=said.append)
    assert "the code of Mine is another" in said[0]
    said.clear()
    quick(tmp_path / "r", "after_edit:Mine", resume=True, rounds=5, on_note=said.append)
    assert not any("the code of" in note for note in said)


def test_weights_that_do_not_fit_the_users_are_told_before_training(tmp_path):
    with pytest.raises(UcflError, match=r"collaboration\(\) gives cannot be reported"):
        quick(tmp_path / "r", local_class(torch.eye(2)))
    assert not (tmp_path / "r" / CONFIGURATION).exists()


def test_a_state_that_cannot_be_stored_is_told_before_training(tmp_path):
    class Lists(FedAvg):
        def start(self, fed):
            return {**super().start(fed), "groups": [1, 2]}

    with pytest.raises(UcflError, match="its state holds 'groups'"):
        quick(tmp_path / "r", Lists)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, r"models\(state\) fails on what start\(\) gives"),
        ({"theta": "text"}, r"models\(state\) fails"),
        ({"theta": torch.zeros(3)}, r"must be Θ, .* not \(3,\)"),
        ({"theta": torch.zeros(2, 5)}, "has 2 rows for 3 users"),
        ({1: torch.zeros(3, 5)}, "has the key 1"),
    ],
)
def test_a_start_without_models_is_one_sentence(tmp_path, given, sentence):
    class Odd(FedAvg):
        name = "odd"

        def start(self, fed):
            return given

    with pytest.raises(UcflError, match=sentence):
        quick(tmp_path / "r", Odd)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda theta: theta.mean(0), r"after round\(\), .* = \(3, (\d+)\) numbers, not \(\1,\)"),
        (lambda theta: theta[:2], r"after round\(\), models\(state\) has 2 rows for 3 users"),
        (lambda theta: theta[:, :-1], r"has the shape \(3, \d+\), but the model has \d+ param"),
        (lambda theta: 1.0, r"models\(state\) fails on what round\(\) gives"),
    ],
)
def test_a_round_that_spoils_the_models_is_one_sentence(tmp_path, spoil, sentence):
    class Spoiling(FedAvg):
        name = "spoiling"

        def round(self, fed, state, t):
            return {"theta": spoil(super().round(fed, state, t)["theta"])}

    with pytest.raises(UcflError, match=f"^spoiling: .*{sentence}"):
        quick(tmp_path / "r", Spoiling)


@pytest.mark.parametrize(
    ("function", "given", "sentence"),
    [
        ("traffic", 3, r"traffic\(fed, state\) must return a Traffic, as Traffic\(down=1, .*not 3"),
        ("traffic", None, r"traffic\(fed, state\) must return a Traffic, .* not None"),
        ("start_traffic", (1, 1), r"start_traffic\(fed, state\) must return .* not \(1, 1\)"),
    ],
)
def test_what_is_no_traffic_is_one_sentence(tmp_path, function, given, sentence):
    kind = type("Odd", (FedAvg,), {function: lambda self, fed, state: given})
    with pytest.raises(UcflError, match=f"^Odd: {sentence}"):
        quick(tmp_path / "r", kind)


def test_a_description_that_is_no_text_is_one_sentence(tmp_path):
    class Odd(FedAvg):
        def describe(self, state):
            return 5

    with pytest.raises(UcflError, match=r"^Odd: describe\(state\) must return a text .* not 5"):
        quick(tmp_path / "r", Odd)


def test_models_that_are_not_finite_are_said_to_be(tmp_path):
    class Broken(FedAvg):
        name = "broken"

        def round(self, fed, state, t):
            theta = super().round(fed, state, t)["theta"].clone()
            theta[1] = torch.nan if t >= 2 else theta[1]
            return {"theta": theta}

    notes = []
    run = quick(tmp_path / "r", Broken, on_note=notes.append)
    assert sum("after round 2, user-1 has no accuracy" in note for note in notes) == 1
    assert np.isnan(run.per_user("test_accuracy")[2:, 1]).all()


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # these users are alike
def test_runs_of_before_facts_were_stored_are_read(tmp_path):
    run = quick(tmp_path / "r", "user-centric:streams=2")
    about = json.loads((run.folder / CONFIGURATION).read_text())
    for word in ("algorithm_facts", "format", "sha256"):
        del about[word]
    (run.folder / CONFIGURATION).write_text(json.dumps(about))
    assert Run.open(run.folder).algorithm == run.algorithm


def test_what_a_user_alone_finds_is_read_again(tmp_path):
    run = ucfl.run(QUICK, "user-centric", users=make_users([20]), out=tmp_path / "r")
    assert Run.open(run.folder).collaboration.weights.tolist() == [[1.0]]
