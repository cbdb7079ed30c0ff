"""Functions of a person's own, after every round: they log, add metrics, stop the run."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import ucfl
from conftest import make_federation, make_users
from runs.test_runs import QUICK
from ucfl import distributed, report
from ucfl.algorithms.fedavg import FedAvg
from ucfl.errors import UcflError
from ucfl.runs import Run, Stopped, progress
from ucfl.runs.starting import train


def quick(out, **options):
    users = make_users([20, 8, 13], groups=[0, 0, 1])
    return ucfl.run(QUICK, "fedavg", **{"out": out, "users": users, **options})


def drift(info):
    """How far models went from the first ones, and a number that counts for everyone."""
    return {"rounds": info.round, "drift": (info.models - info.fed.initial()).norm(dim=1)}


def stop_after_two(info):
    if info.round == 2:
        raise ucfl.StopRun("two are enough")


def test_a_callback_sees_every_round(tmp_path):
    seen = []
    run = quick(tmp_path / "r", callbacks=[seen.append])
    assert [info.round for info in seen] == [1, 2, 3, 4]
    last = seen[-1]
    assert (last.rounds, last.seed, last.label, last.folder) == (4, 0, "fedavg", run.folder)
    assert torch.equal(last.models, run.checkpoint.state["theta"])
    assert last.traffic == run.traffic
    assert {"test_accuracy", "validation_accuracy"} < set(last.metrics)
    assert last.metrics["test_accuracy"].tolist() == run.per_user("test_accuracy")[-1].tolist()


def test_metrics_are_stored_and_change_nothing_else(tmp_path):
    run, plain = quick(tmp_path / "r", callbacks=[drift]), quick(tmp_path / "plain")
    assert set(run.metrics) == {*plain.metrics, "drift", "rounds"}
    again = Run.open(run.folder)
    assert np.isnan(again.per_user("drift")[0]).all()  # nobody was asked before the first round
    assert (again.per_user("drift")[1:] > 0).all()
    assert again.per_user("rounds")[1:].tolist() == [[t] * 3 for t in (1, 2, 3, 4)]
    ours = run.history[run.history["metric"].isin(plain.metrics)].reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, plain.history, check_exact=True)
    assert report.tell(report.gather([run.folder]))


def test_metrics_go_on_after_a_stop_and_have_gaps_where_nobody_measured(tmp_path):
    def interrupt(told):
        if told.round == 2:
            raise KeyboardInterrupt

    whole = quick(tmp_path / "whole", callbacks=[drift])
    with pytest.raises(Stopped):
        quick(tmp_path / "r", callbacks=[drift], on_round=interrupt)
    resumed = quick(tmp_path / "r", callbacks=[drift], resume=True)
    pd.testing.assert_frame_equal(resumed.history, whole.history, check_exact=True)
    longer = quick(tmp_path / "r", resume=True, rounds=6)
    assert np.isnan(longer.per_user("drift")[:, 0]).tolist() == [True] + [False] * 4 + [True] * 2


def test_a_run_that_a_callback_stops_is_finished_as_of_that_round(tmp_path):
    said = []
    options = {"callbacks": [stop_after_two, drift], "on_note": said.append}
    run = quick(tmp_path / "r", **options)
    words = "stopped after round 2 by the callback stop_after_two: two are enough"
    assert run.checkpoint.round == 2
    assert Run.open(run.folder).stopped_early == words
    assert any(words in note for note in said)
    assert not np.isnan(run.per_user("drift")[2]).any()  # the other callback's
    short = quick(tmp_path / "short", rounds=2)
    assert run.summary == short.summary
    story = report.tell(report.gather([run.folder]))
    assert f"fedavg, seed 0: {words}." in story["notes"]
    assert not any("not finished" in note for note in story["notes"])
    assert [told.round for told in report.follow(run.folder)] == [1, 2]
    assert sorted(file.name for file in run.folder.iterdir() if file.suffix) == sorted(
        file.name for file in short.folder.iterdir() if file.suffix
    )


def test_a_run_that_a_callback_stopped_stays_so_until_it_is_resumed(tmp_path):
    quick(tmp_path / "r", callbacks=[stop_after_two])
    said = []
    again = quick(tmp_path / "r", on_note=said.append)
    assert again.checkpoint.round == 2
    assert any("holds this run already" in note for note in said)
    resumed = quick(tmp_path / "r", resume=True)
    assert resumed.stopped_early == ""
    expected = quick(tmp_path / "whole").history
    pd.testing.assert_frame_equal(resumed.history, expected, check_exact=True)


def test_a_stop_in_the_last_round_is_no_stop(tmp_path):
    run = quick(tmp_path / "r", rounds=2, callbacks=[stop_after_two])
    assert run.checkpoint.round == 2
    assert run.stopped_early == ""


def test_the_pages_callbacks(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "own-algorithm.md").read_text()
    text = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1].partition("\nrun = ")[0]
    names = {"ucfl": ucfl}
    exec(text.replace(">= 10:", ">= 2:"), names)
    run = quick(tmp_path / "r", rounds=30, callbacks=[names["distance"], names["enough"]])
    assert "nothing gained for 10 rounds" in run.stopped_early
    assert run.checkpoint.round == run.summary["best_round"] + 2
    assert (run.per_user("distance")[1:] > 0).all()


def test_comparisons_take_callbacks(tmp_path):
    seen = []
    users = make_users([20, 8, 13])
    ucfl.compare(
        QUICK,
        ["fedavg", "local"],
        seeds=[0, 1],
        users=users,
        rounds=1,
        out=tmp_path,
        callbacks=[lambda info: seen.append((info.label, info.seed))],
    )
    assert seen == [("fedavg", 0), ("local", 0), ("fedavg", 1), ("local", 1)]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (3, "gives int: return nothing, or a mapping"),
        ({"new": torch.zeros(2)}, "neither a number nor one number for each of the 3 users"),
        ({"new": "much"}, "neither a number"),
        ({"test_accuracy": 0.5}, "adds 'test_accuracy', which is there already"),
    ],
)
def test_what_a_callback_must_not_return_is_one_sentence(tmp_path, given, sentence):
    with pytest.raises(UcflError, match=sentence):
        quick(tmp_path / "r", callbacks=[lambda info: given])


def test_callbacks_need_one_process(monkeypatch):
    users = make_users([20, 8, 13])
    fed = make_federation(users)
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    with pytest.raises(UcflError, match="need one process"):
        train(QUICK, FedAvg(), fed, users, callbacks=[drift])


def test_a_notebook_sees_one_line_per_run_that_is_written_over(tmp_path, monkeypatch, capsys):
    quick(tmp_path / "script")
    assert capsys.readouterr().out == ""
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(__import__("sys").modules, "IPython", kernel)
    monkeypatch.setattr(progress, "SECONDS", 0)
    quick(tmp_path / "notebook")
    out = capsys.readouterr().out
    assert out.count("\r") == 4
    assert out.endswith("\n")
    assert out.count("\n") == 1
    assert "fedavg: round 4/4, mean " in out
    assert "\x1b" not in out
    quick(tmp_path / "quiet", on_round=lambda told: None)
    assert capsys.readouterr().out == ""


def test_a_shorter_line_leaves_nothing_of_the_longer_one(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0)
    show = progress._line()
    show(progress.Progress("fedavg", 1, 3, 100.0, 100.0))
    show(progress.Progress("fedavg", 2, 3, 5.0, math.nan))
    first, second = capsys.readouterr().out.split("\r")[1:]
    assert len(second) >= len(first)


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    modules = __import__("sys").modules
    monkeypatch.setitem(modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))
    assert not progress.in_notebook()
    monkeypatch.setitem(modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not progress.in_notebook()
