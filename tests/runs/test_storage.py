"""What is stored is whole: stops inside a round, the checkpoint before, files of version 0.1."""

import json
import random
import warnings
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from campaign.mutations import flipped_or_cut
from runs.test_runs import quick
from ucfl.algorithms.fedavg import FedAvg
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs import Run, Stopped
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.folder import CHECKPOINT, HISTORY

CPU = torch.device("cpu")


@pytest.mark.parametrize("call", [3, 4, 5, 6, 8])
def test_a_stop_during_evaluation_leaves_the_round_before_whole(tmp_path, monkeypatch, call):
    """The third call is the first of round 1's two; version 0.1 labelled rows one round off."""
    expected = quick(tmp_path / "whole")
    calls, metrics = [], FedAvg.metrics

    def stopped(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return metrics(*args)

    monkeypatch.setattr(FedAvg, "metrics", stopped)
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
    file.write_bytes(flipped_or_cut(file.read_bytes(), random.Random(2)))
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


def test_a_history_of_version_one_that_lacks_rows_is_refused(tmp_path):
    run = quick(tmp_path / "r")
    table = pq.read_table(run.folder / HISTORY).replace_schema_metadata(None)
    pq.write_table(table, run.folder / HISTORY)
    assert len(Run.open(run.folder).history) == len(table)
    for damaged in (table.slice(1), pa.concat_tables([table, table]), table.slice(0, 0)):
        pq.write_table(damaged, run.folder / HISTORY)
        with pytest.raises(UcflError, match="not one row for each round and user"):
            _ = Run.open(run.folder).history
    quick(tmp_path / "r", resume=True)  # as the sentence says
    assert len(Run.open(run.folder).history) == len(table)


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # these users are alike
def test_a_state_that_lacks_what_its_algorithm_keeps_there_is_refused(tmp_path):
    run = quick(tmp_path / "r", "user-centric")
    assert run.collaboration.weights.shape == (3, 3)
    point = run.checkpoint
    state = {name: value for name, value in point.state.items() if name != "silhouettes"}
    replace(point, state=state, findings=None).save(run.folder / CHECKPOINT)  # as version 0.1 did
    with pytest.raises(UcflError, match=r"is damaged .*silhouettes"):
        _ = Run.open(run.folder).collaboration
    state = point.state | {"weights": torch.ones(2, 2)}
    replace(point, state=state, findings=None).save(run.folder / CHECKPOINT)
    with pytest.raises(UcflError, match="its weights do not fit its users"):
        _ = Run.open(run.folder).collaboration
