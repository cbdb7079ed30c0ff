"""One process on a folder at a time; what a person has is replaced only by something."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from runs.test_runs import RUN, finished, quick, ucfl_command, write_users
from ucfl.errors import UcflError
from ucfl.runs import Run
from ucfl.runs.lock import Busy, held

KILLED = Path(__file__).parent / "killed.py"


def test_a_folder_in_use_is_refused_and_its_owner_named(tmp_path):
    quick(tmp_path / "r")
    before = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    with held(tmp_path / "r"):
        for options in ({}, {"resume": True}, {"fresh": True}, {"rounds": 9, "resume": True}):
            with pytest.raises(Busy, match=f"in use by process {os.getpid()} on "):
                quick(tmp_path / "r", **options)
    assert {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["r"]  # the lock is gone
    quick(tmp_path / "r", rounds=5, resume=True)


def test_a_dead_owners_lock_is_taken_over_with_a_word(tmp_path):
    write_users(tmp_path / "data")
    command = ["run", tmp_path / "data", *RUN, "--rounds", 6, "--out", tmp_path / "r"]
    arguments = [str(word) for word in command]
    died = subprocess.run([sys.executable, KILLED, "trained", "3", *arguments], capture_output=True)
    assert died.returncode == -signal.SIGKILL
    owner = json.loads((tmp_path / ".r.lock").read_text())
    resumed = subprocess.run(
        ucfl_command(*command, "--resume"), capture_output=True, text=True, check=True
    )
    assert f"taken over from process {owner['pid']}" in resumed.stderr
    assert not (tmp_path / ".r.lock").exists()


def test_four_processes_at_once_leave_one_whole_run(tmp_path):
    """Those who come while another trains are told; those who come after find it finished."""
    write_users(tmp_path / "data")
    command = ["run", tmp_path / "data", *RUN, "--rounds", 40, "--out"]
    expected = finished(*command, tmp_path / "whole")
    together = [
        subprocess.Popen(
            ucfl_command(*command, tmp_path / "r"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [(*process.communicate(), process.returncode) for process in together]
    for out, err, code in said:
        assert code in (0, 2)
        if code == 2:
            assert "is in use by" in err or "of 40 rounds" in err
        else:
            assert json.loads(out)["mean"] == expected["mean"]
    assert any(code == 0 for *_, code in said)
    pd.testing.assert_frame_equal(
        Run.open(tmp_path / "r").history, Run.open(tmp_path / "whole").history, check_exact=True
    )


def test_a_finished_run_is_not_trained_again_unasked(tmp_path):
    first = quick(tmp_path / "r")
    rounds, said = [], []
    again = quick(tmp_path / "r", on_round=rounds.append, on_note=said.append)
    assert rounds == []
    assert "holds this run already" in said[0]
    assert again.summary == first.summary
    with pytest.raises(UcflError, match="has 4 rounds already, more than the 3 asked for"):
        quick(tmp_path / "r", rounds=3)
    assert Run.open(tmp_path / "r").checkpoint.round == 4


def test_fresh_replaces_a_run_only_when_the_new_one_has_something(tmp_path):
    write_users(tmp_path / "data")
    command = ["run", tmp_path / "data", *RUN, "--out", tmp_path / "r", "--rounds"]
    finished(*command, 3)
    kept = Run.open(tmp_path / "r").history
    arguments = [str(word) for word in (*command, 6, "--fresh")]
    died = subprocess.run([sys.executable, KILLED, "trained", "1", *arguments], capture_output=True)
    assert died.returncode == -signal.SIGKILL
    finished(*command, 3)  # the old run is back, and finished
    pd.testing.assert_frame_equal(Run.open(tmp_path / "r").history, kept, check_exact=True)
    finished(*command, 6, "--fresh")
    assert Run.open(tmp_path / "r").checkpoint.round == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "r"]
