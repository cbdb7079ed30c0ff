"""The whole reproduction in its reduced form: embedded data, the code of the real one."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ucfl
from ucfl import paper
from ucfl.paper.figures import FIGURES
from ucfl.paper.items import COVARIATE_LABEL_SHIFT
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.paper.tables import TABLES
from ucfl.runs import Stopped
from ucfl.runs.lock import held

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are tiny
FORM, SEEDS = paper.EMBEDDED, (0, 1)
PANELS = {
    "fig-accuracy": 3,
    "fig-clusters": 2,
    "fig-silhouette": 3,
    "fig-time": 3,
    "fig-parallel": 2,
    "fig-batch": 1,
}


class StopAfter:
    """Ctrl-C at the n-th round."""

    def __init__(self, rounds):
        self.left = rounds

    def __call__(self, progress):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """Every item of the reduced form, stopped once on the way."""
    out = tmp_path_factory.mktemp("results")
    store = paper.Store(out / FORM.name)
    cells = paper.in_order(paper.find(["all"]), FORM, SEEDS)
    with pytest.raises(Stopped):
        paper.run_cells(cells, store, device="cpu", on_round=StopAfter(7))
    assert len(list((store.folder / "cells").iterdir())) == 3  # of two rounds each, and one in hand
    assert len(list((store.folder / "unfinished").iterdir())) == 1
    found = paper.survey(cells, store, "cpu")
    assert len(found.done) == 3
    assert paper.run_cells(found.to_do, store, device="cpu")
    return out, store, cells


@pytest.fixture
def command(monkeypatch, capfd):
    """``ucfl reproduce`` in this process: exit code, standard output, standard error."""
    from ucfl import cli

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ucfl", "reproduce", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capfd.readouterr()

    return call


def test_every_cell_is_kept_and_nothing_else(reproduced):
    _, store, cells = reproduced
    assert {file.stem for file in (store.folder / "cells").iterdir()} == {c.name for c in cells}
    assert not list((store.folder / "unfinished").iterdir())
    assert max(file.stat().st_size for file in (store.folder / "cells").iterdir()) < 20_000


def test_a_cell_holds_what_its_run_would_say(reproduced, tmp_path):
    """The fourth cell was stopped after its first round, and went on."""
    _, store, cells = reproduced
    for cell in (cells[3], paper.Cell(FORM.entry(CONCEPT_SHIFT, "user-centric"), 1)):
        kept = store.load(cell)
        run = ucfl.run(
            cell.entry.scenario, cell.entry.algorithm, seed=cell.seed, out=tmp_path / cell.name
        )
        for who in ("mean", "worst"):
            for when in ("final", "best"):
                assert kept.value(who, when) == pytest.approx(run.summary[who][when], abs=1e-4)
        np.testing.assert_array_equal(kept.traffic, run.checkpoint.traffic.numpy())
        np.testing.assert_allclose(kept.final, 100 * run.per_user("test_accuracy")[-1], atol=1e-4)
        validation = 100 * run.per_user("validation_accuracy")
        np.testing.assert_allclose(
            kept.curves["validation_mean"], np.nanmean(validation, axis=1), atol=1e-4
        )
        assert kept.start == run.start_traffic
    weights = kept.collaboration.weights
    np.testing.assert_allclose(weights, run.checkpoint.state["weights"], atol=1e-6)
    assert kept.population.groups == [0, 0, 1, 1, 2, 2, 3, 3]


def test_goals_do_not_depend_on_what_else_is_asked_for(reproduced, command):
    """Known mistake: alone, the layered method was first on air, since nobody else was there."""
    out, _, _ = reproduced
    words = ("--embedded", "--seeds", "0-1", "--out", out, "--json")
    goals = [json.loads(command(item, *words)[1])["goals"] for item in ("beyond", "all")]
    assert goals[0] == goals[1]


def test_asked_again_it_prints_at_once(reproduced, command, monkeypatch):
    """Nothing can be trained here."""
    monkeypatch.setattr("ucfl.paper.reproduce.federation", None)
    out, store, cells = reproduced
    code, said, notes = command("all", "--embedded", "--seeds", "0-1", "--out", out, "--json")
    assert code == 0, notes
    assert notes == f"ucfl: {len(cells)} of {len(cells)} cells are there.\n"
    answer = json.loads(said)
    assert (answer["form"], answer["reduced"], answer["seeds"]) == ("embedded", True, [0, 1])
    assert (answer["done"], answer["to_do"]) == (len(cells), 0)
    assert set(answer["items"]) == {*TABLES, *FIGURES} - {"held-out"}
    assert {len(row["seeds"]) for row in answer["items"]["table1"]} == {2}
    for item, panels in PANELS.items():
        files = answer["items"][item]
        assert len(files) == 2 * panels, item
        for file in files:
            text = Path(file).read_bytes()
            assert text.startswith(b"%PDF") or b"<svg" in text
    answered = [claim for claim in answer["claims"] if claim["holds"] is not None]
    assert len(answered) == len(answer["claims"]) - 1  # a stand-in is not held against Table I
    assert len((store.folder / "cells.csv").read_text().splitlines()) == 1 + len(cells)


def test_a_person_sees_tables_marked_as_reduced(reproduced, command):
    out, _, _ = reproduced
    _, said, _ = command("table1", "fig-batch", "--embedded", "--seeds", "0-1", "--out", out)
    assert "Table I: average test accuracy – reduced form (embedded)" in said
    assert "fig-batch-n_k.pdf" in said
    assert "What the paper claims" in said
    _, said, _ = command("table2", "--embedded", "--seeds", "0-1", "--out", out, "--markdown")
    assert "| embedded-emnist-label-shift | Ditto | personalised | 2 | 2 |" in said


def test_interactive_pages_lie_beside_the_figures(reproduced, command):
    out, store, _ = reproduced
    options = ("fig-parallel", "--embedded", "--seeds", "0-1", "--out", out, "--report")
    code, said, notes = command(*options, "--json")
    assert code == 0, notes
    files = json.loads(said)["reports"]
    assert sorted(map(Path, files.values())) == sorted(store.folder.glob("report-*.html"))
    assert set(files) == {f"embedded-{name}" for name in (LABEL_SHIFT, COVARIATE_LABEL_SHIFT)}
    text = Path(files[f"embedded-{LABEL_SHIFT}"]).read_text()
    assert "parallel-user-centric" in text
    assert FORM.note in text


def test_a_reduced_form_has_a_folder_of_its_own(tmp_path, command):
    options = ("table2", "--embedded", "--rounds", 1, "--seeds", 0, "--out", tmp_path)
    code, _, notes = command(*options, "--only", COVARIATE_SHIFT, "--algorithms", "fedavg,oracle")
    assert code == 0, notes
    files = [file.name for file in (tmp_path / "embedded-1-rounds" / "cells").iterdir()]
    assert sorted(name.split("-1rounds")[0] for name in files) == [
        "embedded-emnist-covariate-shift-fedavg",
        "embedded-emnist-covariate-shift-oracle",
    ]
    listed = json.loads(command(*options, "--list", "--json")[1])
    assert listed["form"] == "embedded-1-rounds"
    assert sum(cell["done"] for cell in listed["cells"]) == 2
    assert listed["forecast"].startswith("2 of 20 cells are there, 18 to do; ")
    assert command(*options, "--list")[1].count("to do") == 19


def test_ctrl_c_says_how_to_go_on(tmp_path, command, monkeypatch):
    monkeypatch.setattr("ucfl.display._plain_lines", lambda: StopAfter(1))
    options = ("table2", "--embedded", "--seeds", 0, "--out", tmp_path)
    code, said, notes = command(*options)
    assert (code, said) == (130, "")
    assert notes.endswith("stopped after round 1 of a cell; the same command goes on there.\n")


def test_at_the_limit_the_cell_at_work_is_kept_where_it_is(tmp_path, monkeypatch):
    store = paper.Store(tmp_path)
    cells = FORM.entry(CONCEPT_SHIFT, "fedavg").cells([0])
    shown, now = [], [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("ucfl.paper.reproduce.time", clock)

    def slow(progress):
        shown.append(progress.round)
        now[0] += 1.1

    assert not paper.run_cells(cells, store, device="cpu", limit_seconds=0)
    assert not shown
    assert not paper.run_cells(cells, store, device="cpu", limit_seconds=1, on_round=slow)
    assert shown == [1]
    assert store.load(cells[0]) is None
    assert paper.run_cells(cells, store, device="cpu", on_round=slow)
    assert shown == [1, 2]
    assert store.load(cells[0]).rounds == 2


def test_an_unfinished_cell_that_cannot_go_on_starts_again(tmp_path):
    store = paper.Store(tmp_path)
    cells = FORM.entry(CONCEPT_SHIFT, "fedavg").cells([0])
    with pytest.raises(Stopped):
        paper.run_cells(cells, store, device="cpu", on_round=StopAfter(1))
    (store.unfinished(cells[0]) / "checkpoint.safetensors").write_bytes(b"damaged")
    said = []
    assert paper.run_cells(cells, store, device="cpu", on_note=said.append)
    assert said[0].endswith("the cell starts again.")
    assert store.load(cells[0]).rounds == 2


def test_a_cell_that_another_process_works_on_is_left_to_it(tmp_path):
    store = paper.Store(tmp_path)
    theirs, ours = FORM.entry(CONCEPT_SHIFT, "fedavg").cells([0, 1])
    said = []
    with held(store.file(theirs)):
        assert paper.run_cells([theirs, ours], store, device="cpu", on_note=said.append)
    assert store.load(theirs) is None
    assert store.load(ours).rounds == 2
    assert [note for note in said if note.endswith("; it is left to that process.")] == said[:1]
    assert f"is in use by process {os.getpid()} on " in said[0]
    assert paper.run_cells([theirs, ours], store, device="cpu")
    assert store.load(theirs).rounds == 2


def test_cells_that_are_left_to_others_are_said_to_be_missing(tmp_path, command):
    """Known mistake: a table without them looked like a finished one."""
    words = ("fig-clusters", "--embedded", "--seeds", "0", "--only", CONCEPT_SHIFT)
    (cell,) = (
        cell
        for cell in paper.in_order(paper.find(["fig-clusters"]), FORM, (0,))
        if cell.entry.scenario.name == FORM.scenarios[CONCEPT_SHIFT].name
    )
    with held(paper.Store(tmp_path / FORM.name).file(cell)):
        code, _, notes = command(*words, "--out", tmp_path)
    assert code == 0
    assert "1 cell is not there, and in no table: what other processes work on" in notes
    assert "other processes" not in command(*words, "--out", tmp_path)[2]


def test_a_cell_that_diverges_is_said_and_the_others_go_on(tmp_path):
    """Known mistake: it ended the command, and kept the cells after it from being made."""
    store = paper.Store(tmp_path)
    usual = FORM.entry(CONCEPT_SHIFT, "fedavg")
    steep = paper.Entry(usual.scenario.change({"lr": 3e38}), "fedavg")
    (lost,), (kept,) = steep.cells([0]), usual.cells([0])
    said = []
    assert paper.run_cells([lost, kept], store, device="cpu", on_note=said.append)
    assert store.load(lost) is None
    assert store.load(kept).rounds == 2
    (note,) = [note for note in said if note.startswith("training diverged in round 1: ")]
    assert note.endswith(f"The cell {lost.name} is left out, and the others go on.")


def left_behind(store, cell, *, lock):
    """What a process leaves that ends after it has kept the cell, before it has removed its run."""
    store.unfinished(cell).mkdir(parents=True)
    (store.unfinished(cell) / "checkpoint.safetensors").touch()
    if lock:
        (store.file(cell).parent / f".{store.file(cell).name}.lock").touch()


@pytest.mark.parametrize("lock", [True, False])
def test_the_run_of_a_kept_cell_is_removed_whether_or_not_a_lock_is_left(tmp_path, lock):
    store = paper.Store(tmp_path)
    kept, begun = FORM.entry(CONCEPT_SHIFT, "fedavg").cells([0, 1])
    assert paper.run_cells([kept], store, device="cpu")
    for cell in (kept, begun):
        left_behind(store, cell, lock=lock)
    assert paper.run_cells([], store, device="cpu")
    assert [run.name for run in (store.folder / "unfinished").iterdir()] == [begun.name]
    assert [file.name for file in (store.folder / "cells").iterdir()] == [f"{kept.name}.npz"]


@pytest.mark.parametrize("lock", [True, False])
def test_the_run_that_replaces_a_damaged_cell_goes_on(tmp_path, lock):
    store = paper.Store(tmp_path)
    (cell,) = FORM.entry(CONCEPT_SHIFT, "fedavg").cells([0])
    store.file(cell).parent.mkdir(parents=True)
    store.file(cell).write_bytes(b"damaged")
    left_behind(store, cell, lock=lock)
    assert paper.run_cells([], store, device="cpu")
    assert store.unfinished(cell).exists()
