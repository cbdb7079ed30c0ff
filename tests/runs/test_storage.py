"""What is stored is what comes back, or it is refused: stops inside a round, flipped bits, cuts."""

import json
import random
import warnings

import pandas as pd
import pytest
import torch

from runs.test_runs import quick
from ucfl.algorithms.fedavg import FedAvg
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs import Run, Stopped
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, HISTORY, read_configuration

CPU = torch.device("cpu")


@pytest.mark.parametrize("call", [3, 4, 5, 6, 8])
def test_a_stop_during_evaluation_leaves_the_round_before_whole(tmp_path, monkeypatch, call):
    """The third call is the first of round 1's two; version 0.1 labelled rows one round off."""
    expected = quick(tmp_path / "whole")
    calls, accuracy = [], FedAvg.accuracy

    def stopped(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return accuracy(*args)

    monkeypatch.setattr(FedAvg, "accuracy", stopped)
    with pytest.raises(Stopped) as stop:
        quick(tmp_path / "r")
    assert stop.value.round == (call - 3) // 2
    if stop.value.round == 0:
        assert not (tmp_path / "r" / CHECKPOINT).exists()  # nothing has been trained
    else:
        point = Run.open(tmp_path / "r").checkpoint
        assert {len(rows) for rows in point.history.values()} == {point.round + 1}
        assert len(point.traffic) == point.round
    resumed = quick(tmp_path / "r", resume=True)
    pd.testing.assert_frame_equal(resumed.history, expected.history, check_exact=True)
    assert torch.equal(resumed.checkpoint.state["theta"], expected.checkpoint.state["theta"])


def damaged(whole, rng):
    """One bit flipped, or the end cut off."""
    if rng.random() < 0.1:
        return whole[: rng.randrange(len(whole))]
    place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
    return whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]


def contents(folder, name):
    """What a stored file says, in a form that can be compared."""
    if name == CHECKPOINT:
        point = Checkpoint.load(folder / name, CPU)
        tensors = {**point.history, "traffic": point.traffic}
        tensors |= {k: v for k, v in point.state.items() if isinstance(v, torch.Tensor)}
        return point.round, point.seconds, {k: v.tolist() for k, v in tensors.items()}
    if name == HISTORY:
        return Run.open(folder).history.to_dict("list")
    return read_configuration(folder)


def accepted(folder, name, times, rng):
    """How many damaged forms of a file are read as something else; any other error is raised."""
    file = folder / name
    whole, expected = file.read_bytes(), repr(contents(folder, name))
    wrong = 0
    for _ in range(times):
        file.write_bytes(damaged(whole, rng))
        try:
            wrong += repr(contents(folder, name)) != expected
        except UcflError as error:
            wrong += "\n" in str(error)
    file.write_bytes(whole)
    return wrong


@pytest.mark.parametrize("name", [CHECKPOINT, HISTORY, CONFIGURATION])
def test_damage_is_never_read_as_something_else(tmp_path, name):
    run = quick(tmp_path / "r")
    assert accepted(run.folder, name, 150, random.Random(0)) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", [CHECKPOINT, HISTORY, CONFIGURATION])
def test_damage_is_never_read_as_something_else_a_thousand_times(tmp_path, name):
    run = quick(tmp_path / "r")
    assert accepted(run.folder, name, 1000, random.Random(1)) == 0


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    expected = quick(tmp_path / "whole")

    def interrupt(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    folder = tmp_path / "r"
    with pytest.raises(Stopped):
        quick(folder, checkpoint_seconds=0, on_round=interrupt)
    file = folder / CHECKPOINT
    assert Checkpoint.load(file, CPU).round == 3
    assert Checkpoint.load(before(file), CPU).round == 2
    file.write_bytes(damaged(file.read_bytes(), random.Random(2)))
    with pytest.warns(UcflWarning, match="of round 2, is taken instead"):
        resumed = quick(folder, resume=True)
    pd.testing.assert_frame_equal(resumed.history, expected.history, check_exact=True)
    assert not before(file).exists()  # the run is whole


def test_a_checkpoint_of_version_one_has_no_checksum_and_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("ucfl.runs.checkpoint._digest", lambda *_: "")
    history = {"test_accuracy": torch.zeros(2, 2)}
    point = Checkpoint(1, 0.5, {"theta": torch.ones(2, 3)}, history, torch.zeros(1, 3))
    saved = []
    monkeypatch.setattr(
        "ucfl.runs.checkpoint.save_file",
        lambda tensors, path, metadata: saved.append((tensors, path, metadata)),
    )
    point.save(tmp_path / "c")
    tensors, _, metadata = saved[0]
    monkeypatch.undo()
    from safetensors.torch import save_file

    about = json.loads(metadata["ucfl"])
    save_file(tensors, tmp_path / "c", {"ucfl": metadata["ucfl"]})
    with pytest.raises(UcflError, match="checksum"):  # a format that has one
        Checkpoint.load(tmp_path / "c", CPU)
    about = {key: about[key] for key in ("round", "seconds", "values")}
    save_file(tensors, tmp_path / "c", {"ucfl": json.dumps(about)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(Checkpoint.load(tmp_path / "c", CPU).state["theta"], torch.ones(2, 3))
