"""One process on a folder at a time; what a person has is replaced only by something."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

from commands import run_ucfl
from runs.test_runs import RUN, finished, quick, write_users
from ucfl.algorithms.fedavg import FedAvg
from ucfl.errors import UcflError, UcflWarning
from ucfl.report import follow
from ucfl.runs import Run, Stopped
from ucfl.runs.files import UNFINISHED
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, HISTORY
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
    resumed = run_ucfl(*command, "--resume", check=True)
    assert f"taken over from process {owner['pid']}" in resumed.stderr
    assert not (tmp_path / ".r.lock").exists()


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
    arguments = [str(word) for word in (*command, 6, "--seed", 1, "--fresh")]
    died = subprocess.run([sys.executable, KILLED, "trained", "1", *arguments], capture_output=True)
    assert died.returncode == -signal.SIGKILL
    finished(*command, 3)  # the old run is back, and finished
    pd.testing.assert_frame_equal(Run.open(tmp_path / "r").history, kept, check_exact=True)
    finished(*command, 6, "--seed", 1, "--fresh")
    assert Run.open(tmp_path / "r").checkpoint.round == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "r"]


def test_the_dead_are_not_said_to_have_a_folder(tmp_path, monkeypatch):
    """Who takes a lock over writes its name an instant later."""
    file = tmp_path / ".r.lock"
    with held(tmp_path / "r"):
        name = file.read_text()
        dead = json.dumps({**json.loads(name), "pid": 2**22 + 1})  # beyond any process's
        for text in ("", dead):
            file.write_text(text)
            monkeypatch.setattr("ucfl.runs.lock.time.sleep", lambda _: file.write_text(name))
            with pytest.raises(Busy, match=f"in use by process {os.getpid()} on "):
                quick(tmp_path / "r")


def test_a_folder_has_one_lock_whatever_links_lead_there(tmp_path):
    quick(tmp_path / "r")
    (tmp_path / "link").symlink_to("r")
    with held(tmp_path / "r"), pytest.raises(Busy):
        quick(tmp_path / "link", fresh=True)
    quick(tmp_path / "link", rounds=3, fresh=True)
    assert Run.open(tmp_path / "r").checkpoint.round == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "r"]


def stop_at(t):
    def on_round(progress):
        if progress.round == t:
            raise KeyboardInterrupt

    return on_round


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_run_that_fresh_was_to_replace_is_there_again_after_a_stop(tmp_path, monkeypatch):
    """Nothing of the new one has been trained: neither a stop nor a failure costs the old one."""
    quick(tmp_path / "r")
    old = contents(tmp_path / "r")
    for error in (KeyboardInterrupt, UcflError("no")):
        with monkeypatch.context() as patched:
            patched.setattr(FedAvg, "round", Mock(side_effect=error))
            with pytest.raises((Stopped, UcflError)):
                quick(tmp_path / "r", seed=1, fresh=True)
        assert contents(tmp_path / "r") == old
    with pytest.raises(Stopped):
        quick(tmp_path / "r", seed=1, fresh=True, on_round=stop_at(1))
    assert Run.open(tmp_path / "r").checkpoint.round == 1
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_nothing_is_replaced_without_fresh(tmp_path):
    """Whatever is wrong with what is there; and the advice is advice that works."""
    quick(tmp_path / "r")
    (tmp_path / "r" / CONFIGURATION).unlink()
    before = contents(tmp_path / "r")
    for options in ({}, {"resume": True}):
        with pytest.raises(UcflError, match=r"without its run\.json; replace it with --fresh"):
            quick(tmp_path / "r", **options)
        assert contents(tmp_path / "r") == before
    quick(tmp_path / "r", fresh=True)
    for options, words in (
        ({"rounds": 3}, "has 4 rounds already, more than the 3 asked for; replace it with --fresh"),
        ({"seed": 1}, r"another configuration \(different seed.*; replace it with --fresh"),
        ({"rounds": 5}, "with 4 of 5 rounds; continue it with --resume, replace it with --fresh"),
    ):
        with pytest.raises(UcflError, match=words):
            quick(tmp_path / "r", **options)
    with pytest.raises(UcflError, match="give one of them"):
        quick(tmp_path / "r", resume=True, fresh=True)
    assert Run.open(tmp_path / "r").checkpoint.round == 4


def test_a_finished_run_asked_for_again_is_not_written(tmp_path):
    quick(tmp_path / "r")
    before = contents(tmp_path / "r")
    quick(tmp_path / "r")
    quick(tmp_path / "r", resume=True)
    assert contents(tmp_path / "r") == before
    (tmp_path / "r" / HISTORY).unlink()  # as a stop between the last checkpoint and it leaves it
    quick(tmp_path / "r")
    assert contents(tmp_path / "r") == before


def test_what_the_dead_left_unfinished_blocks_nothing(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / f".{CHECKPOINT}-123-abc{UNFINISHED}").write_bytes(b"half")
    quick(tmp_path / "r")
    assert sorted(contents(tmp_path / "r")) == sorted([CONFIGURATION, CHECKPOINT, HISTORY])


def test_a_run_begun_of_which_no_round_is_stored_starts_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(FedAvg, "round", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(Stopped):
            quick(tmp_path / "r")
    (tmp_path / "r" / "notes.txt").write_text("mine")
    quick(tmp_path / "r")
    assert (tmp_path / "r" / "notes.txt").read_text() == "mine"


def test_a_damaged_checkpoint_is_not_kept_as_the_one_before(tmp_path, monkeypatch):
    """Or a stop while the next one is written would leave two that cannot be read."""
    with pytest.raises(Stopped):
        quick(tmp_path / "r", checkpoint_seconds=0, on_round=stop_at(3))
    file = tmp_path / "r" / CHECKPOINT
    file.write_bytes(b"damaged")
    with monkeypatch.context() as patched:
        patched.setattr(FedAvg, "round", Mock(side_effect=UcflError("no")))
        with (
            pytest.warns(UcflWarning, match="of round 2, is taken instead"),
            pytest.raises(UcflError),
        ):
            quick(tmp_path / "r", resume=True)
    assert Run.open(tmp_path / "r").checkpoint.round == 2


def test_watch_says_that_nobody_trains_a_stopped_run(tmp_path):
    with pytest.raises(Stopped):
        quick(tmp_path / "r", on_round=stop_at(2))
    gone = {"pid": 2**22 + 1, "host": socket.gethostname(), "since": 0}  # beyond any process's
    for lock in (None, json.dumps(gone)):
        if lock:
            (tmp_path / ".r.lock").write_text(lock)
        with pytest.raises(
            UcflError, match=r"nobody trains .* has 2 of 4 rounds; go on with --res"
        ):
            list(follow(tmp_path / "r"))


def test_watch_follows_a_run_that_was_stopped_shortened_and_resumed(tmp_path):
    with pytest.raises(Stopped):
        quick(tmp_path / "r", on_round=stop_at(2))
    with held(tmp_path / "r"):  # somebody trains it
        watched = follow(tmp_path / "r", pause=0)
        assert [next(watched).round, next(watched).round] == [1, 2]
    quick(tmp_path / "r", rounds=3, resume=True)
    assert [(p.round, p.rounds) for p in watched] == [(3, 3)]
