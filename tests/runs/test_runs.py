"""Runs on disk: repeatable, resumable, never half-written."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import ucfl
from commands import run_ucfl, ucfl_command
from conftest import make_users, model_for
from ucfl.errors import UcflError
from ucfl.measure import ACCURACY
from ucfl.runs import Run, Stopped
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, HISTORY
from ucfl.users import Scenario
from ucfl.wireless import Traffic

QUICK = Scenario(name="quick", model="logistic", lr=0.05, batch=8, rounds=4)


def quick(out, algorithm="fedavg", scenario=QUICK, **options):
    users = make_users([20, 8, 13], groups=[0, 0, 1])
    return ucfl.run(scenario, algorithm, **{"out": out, "users": users, **options})


def write_users(folder, users=6, points=40, pixels=12):
    """One .npz per user: data that a subprocess can load in no time."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(3, pixels))
    for i in range(users):
        y = rng.integers(0, 3, points)
        np.savez(folder / f"u{i}.npz", x=patterns[y] + rng.normal(size=(points, pixels)), y=y)


def test_a_run_folder_holds_everything(tmp_path):
    run = quick(tmp_path / "r")
    assert sorted(p.name for p in run.folder.iterdir()) == sorted(
        [CONFIGURATION, HISTORY, CHECKPOINT]
    )
    table = run.history
    assert list(table.columns) == ["round", "user", "metric", "value"]
    assert len(table) == 5 * 3 * 2 * 4
    about = json.loads((run.folder / CONFIGURATION).read_text())
    assert about["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert about["users"]["groups"] == [0, 0, 1]
    assert [sum(counts) for counts in about["users"]["label_counts"]] == [20, 8, 13]
    assert about["users"]["test_sizes"] == [4, 4, 4]
    assert (
        '"groups": [ 0, 0, 1 ]' in (run.folder / CONFIGURATION).read_text()
    )  # not a line a number
    assert run.traffic == Traffic(down=1, up=1)
    assert run.checkpoint.traffic.tolist() == [[1, 1, 1]] * 4
    again = Run.open(run.folder)
    assert again.scenario == run.scenario
    assert again.scenario.change({"initialisation": None}) == QUICK.serving(
        make_users([20, 8, 13], groups=[0, 0, 1]), given=True
    )
    assert again.summary == run.summary
    assert again.algorithm.label == "fedavg"


def test_same_seed_identical_history(tmp_path):
    one, two = quick(tmp_path / "a"), quick(tmp_path / "b")
    pd.testing.assert_frame_equal(one.history, two.history, check_exact=True)
    theta = [run.checkpoint.state["theta"] for run in (one, two)]
    assert torch.equal(*theta)
    other = quick(tmp_path / "c", seed=1)
    assert not torch.equal(other.checkpoint.state["theta"], theta[0])


def test_another_chunk_same_results(tmp_path):
    whole = quick(tmp_path / "a", chunk=3).checkpoint.state["theta"]
    for name, path in (("b", {"chunk": 1}), ("c", {"chunk": 2}), ("d", {"plain": True})):
        other = quick(tmp_path / name, **path).checkpoint.state["theta"]
        assert (whole - other).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # these users are alike
@pytest.mark.parametrize("algorithm", ucfl.algorithms.REGISTRY)
def test_stopped_anywhere_and_resumed_is_uninterrupted(tmp_path, algorithm):
    layered = QUICK.change({"model": model_for(algorithm)})  # FedPer needs a body
    expected = quick(tmp_path / "whole", algorithm, layered)
    for stop in (1, 3):

        def interrupt(progress, stop=stop):
            if progress.round == stop:
                raise KeyboardInterrupt

        folder = tmp_path / f"stopped-{stop}"
        with pytest.raises(Stopped):
            quick(folder, algorithm, layered, on_round=interrupt)
        with pytest.raises(UcflError, match="--resume"):
            quick(folder, algorithm, layered)
        resumed = quick(folder, algorithm, layered, resume=True)
        pd.testing.assert_frame_equal(resumed.history, expected.history, check_exact=True)


def test_a_run_of_version_one_says_how_it_treated_its_last_batches(tmp_path):
    run = quick(tmp_path / "r")
    assert run.scenario.last_batch == "drop"
    about = json.loads((run.folder / CONFIGURATION).read_text())
    del about["scenario"]["last_batch"], about["configuration"]["scenario"]["last_batch"]
    del about["format"], about["sha256"]
    (run.folder / CONFIGURATION).write_text(json.dumps(about))
    assert Run.open(run.folder).scenario.last_batch == "keep"
    with pytest.raises(UcflError, match="different last_batch"):
        quick(tmp_path / "r", resume=True)


def test_the_executor_is_said_once_and_stored(tmp_path):
    said = []
    run = quick(tmp_path / "r", on_note=said.append, plain=True)
    assert said == ["executor: plain: one user after another"]
    assert run.about["machine"]["executor"] == said[0].removeprefix("executor: ")


def test_a_plain_executor_that_nobody_asked_for_says_why(tmp_path):
    said = []
    quick(tmp_path / "r", scenario=QUICK.change({"batch": 17}), on_note=said.append)
    reason = "(batches above 16, fewer than 16 steps a round)"
    assert said == [f"executor: plain: one user after another {reason}"]


def test_a_finished_run_is_not_trained_again_on_resume_but_can_be_extended(tmp_path):
    first = quick(tmp_path / "r")
    rounds = []
    again = quick(tmp_path / "r", resume=True, on_round=rounds.append)
    assert rounds == []
    pd.testing.assert_frame_equal(again.history, first.history)
    longer = quick(tmp_path / "r", resume=True, rounds=6, on_round=rounds.append)
    assert [p.round for p in rounds] == [5, 6]
    pd.testing.assert_frame_equal(
        longer.history, quick(tmp_path / "fresh", rounds=6).history, check_exact=True
    )
    with pytest.raises(UcflError, match="6 rounds already"):
        quick(tmp_path / "r", resume=True, rounds=5)


def test_another_configuration_is_refused_and_nothing_is_touched(tmp_path):
    quick(tmp_path / "r")
    before = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    for options, word in (
        ({"seed": 1}, "seed"),
        ({"algorithm": "local"}, "algorithm"),
        ({"users": make_users([20, 8, 14])}, "data"),
    ):
        for resume in (True, False):
            with pytest.raises(UcflError, match="another") as caught:
                quick(tmp_path / "r", resume=resume, **options)
            assert word in str(caught.value) or not resume
    assert {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()} == before


def test_damaged_files_are_one_sentence(tmp_path):
    run = quick(tmp_path / "r")
    whole = (run.folder / CHECKPOINT).read_bytes()
    for damage in (whole[:100], whole[: len(whole) // 2], b""):
        (run.folder / CHECKPOINT).write_bytes(damage)
        with pytest.raises(UcflError, match=f"{CHECKPOINT} is damaged"):
            quick(tmp_path / "r", resume=True)
    (run.folder / CONFIGURATION).write_text("{")
    with pytest.raises(UcflError, match=rf"{CONFIGURATION} is damaged"):
        quick(tmp_path / "r", resume=True)
    (run.folder / HISTORY).write_bytes(b"no")
    with pytest.raises(UcflError, match="is damaged"):
        _ = Run(run.folder, QUICK, run.algorithm, 0).history


def test_folders_that_are_not_ours_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UcflError, match="is a file"):
        quick(tmp_path / "file")
    with pytest.raises(UcflError, match="cannot be written"):
        quick(tmp_path / "file" / "below")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    for fresh in (False, True):
        with pytest.raises(UcflError, match="holds no run"):
            quick(tmp_path / "full", fresh=fresh)
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    with pytest.raises(UcflError, match="not a run"):
        Run.open(tmp_path / "full")


def test_nothing_is_written_when_the_algorithm_cannot_serve_the_users(tmp_path):
    with pytest.raises(UcflError, match="true groups"):
        quick(tmp_path / "r", "oracle", users=make_users([5, 5]))
    assert not (tmp_path / "r").exists()


def test_the_best_round_is_chosen_by_validation_and_never_by_test(tmp_path):
    validation = np.array([[0.9, 0.9], [0.1, 0.3], [0.5, 0.5], [0.6, 0.4], [0.2, 0.2]])
    assert ACCURACY.best_round(validation) == 2  # round 0 is untrained; the earliest of equals
    assert ACCURACY.best_round(np.full((4, 2), np.nan)) == 3
    run = quick(tmp_path / "r")
    test, chosen = run.per_user("test_accuracy"), run.summary["best_round"]
    assert chosen == ACCURACY.best_round(run.per_user("validation_accuracy"))
    assert run.summary["mean"]["best"] == pytest.approx(100 * test[chosen].mean())
    assert run.summary["worst"]["final"] == pytest.approx(100 * test[-1].min())


def test_comparison_over_seeds(tmp_path):
    result = ucfl.compare(
        "rotated-mnist",
        ["fedavg", "local"],
        seeds=[0, 1],
        rounds=1,
        out=tmp_path,
    )
    table = result.to_json()
    assert table["seeds"] == [0, 1]
    for label, row in table["algorithms"].items():
        finals = [run.summary["mean"]["final"] for run in result.runs[label]]
        assert row["mean"]["final"] == pytest.approx(np.mean(finals))
        assert row["std"]["mean"]["final"] == pytest.approx(np.std(finals, ddof=1))
    means = [row["mean"]["final"] for row in table["algorithms"].values()]
    assert means == sorted(means, reverse=True)
    with pytest.raises(UcflError, match="name one twice"):
        ucfl.compare("rotated-mnist", ["fedavg", "fedavg"], out=tmp_path)


RUN = ["--algorithm", "fedavg", "--model", "mlp", "--json", "--checkpoint-seconds", 0]
RUN += ["--set", "batch=4"]


def finished(*arguments):
    """What a run prints; a resumed one counts the seconds of its own."""
    done = run_ucfl(*arguments, check=True)
    return {key: value for key, value in json.loads(done.stdout).items() if key != "folder"}


def assert_as_undisturbed(folder, result, expected, whole):
    for key in ("mean", "worst", "best_round", "rounds"):
        assert result[key] == expected[key], key
    pd.testing.assert_frame_equal(
        Run.open(folder).history, Run.open(whole).history, check_exact=True
    )
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == sorted(
        [CONFIGURATION, HISTORY, CHECKPOINT]
    )


def test_kill_9_then_resume(tmp_path):
    """At chosen moments, so that it does not matter how fast the machine is."""
    write_users(tmp_path / "data")
    command = ["run", tmp_path / "data", *RUN, "--rounds", 6, "--out"]
    expected = finished(*command, tmp_path / "whole")
    driver = Path(__file__).parent / "killed.py"
    # Files are replaced in this order: run.json, then checkpoint and history of every round.
    for moment, number in (("trained", 1), ("trained", 4), ("writing", 4), ("written", 5)):
        folder = tmp_path / f"{moment}-{number}"
        arguments = [str(word) for word in (*command, folder)]
        died = subprocess.run(
            [sys.executable, driver, moment, str(number), *arguments], capture_output=True
        )
        assert died.returncode == -signal.SIGKILL
        assert_as_undisturbed(
            folder, finished(*command, folder, "--resume"), expected, tmp_path / "whole"
        )


@pytest.mark.long
def test_kill_9_at_any_moment_then_resume_ten_times_out_of_ten(tmp_path):
    """How many of the ten are killed before their end depends on the machine."""
    write_users(tmp_path / "data")
    command = ["run", tmp_path / "data", *RUN, "--rounds", 40, "--out"]
    expected = finished(*command, tmp_path / "whole")
    rng = random.Random()
    for attempt in range(10):
        folder = tmp_path / f"run-{attempt}"
        process = subprocess.Popen(
            ucfl_command(*command, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        # Past the imports, the moment is random: anywhere from the first write to after the end.
        while not (folder / CONFIGURATION).exists() and process.poll() is None:
            os.sched_yield()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=expected["seconds"] * rng.random())
        process.kill()
        process.communicate()
        assert_as_undisturbed(
            folder, finished(*command, folder, "--resume"), expected, tmp_path / "whole"
        )
