"""Cells on disk: small, whole or refused, and never mistaken for one another."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paper.making import result
from ucfl.errors import UcflError
from ucfl.paper import EMBEDDED, PAPER, Cell, Store, survey
from ucfl.paper.items import ITEMS
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.paper.tables import diverged
from ucfl.users import Scenario

ENTRY = PAPER.entry(COVARIATE_SHIFT, "user-centric")
RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"
#: A stored cell in which users' models diverged.
DIVERGED = ("emnist-labels", "scaffold")


def full(seed=0):
    weights = np.random.default_rng(seed).random((100, 100))
    return result(
        ENTRY,
        seed,
        users=100,
        weights=weights / weights.sum(1, keepdims=True),
        silhouettes=np.linspace(0, 1, 100),
        labels=np.arange(100),
        groups=np.arange(100) // 25,
    )


def test_a_cell_comes_back_as_it_was_saved_and_is_small(tmp_path):
    store, saved = Store(tmp_path), full()
    cell = Cell.of(saved)
    store.save(cell, saved)
    assert store.file(cell).stat().st_size < 60_000
    back = store.load(cell)
    assert Cell.of(back) == cell
    for name in ("algorithm", "best_round", "start", "seconds", "model_bytes", "population"):
        assert getattr(back, name) == getattr(saved, name), name
    assert back.origin == replace(saved.origin, kept=f"cells/{cell.name}.npz")
    for name, values in saved.curves.items():
        np.testing.assert_allclose(back.curves[name], values, atol=1e-5)
    for name in ("traffic", "final", "best"):
        np.testing.assert_allclose(getattr(back, name), getattr(saved, name), atol=1e-5)
    for name in ("weights", "silhouettes", "labels"):
        ours, theirs = (getattr(one.collaboration, name) for one in (back, saved))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert back.audience.labels.tolist() == saved.audience.labels.tolist()
    assert back.value("mean", "best") == pytest.approx(50)
    assert store.load(Cell(ENTRY, 1)) is None


def test_a_cell_says_how_many_users_diverged(tmp_path):
    """Known mistake: it did not, so an average over those who were left looked like any other."""
    store, saved = Store(tmp_path), replace(full(), dropped=3)
    store.save(Cell.of(saved), saved)
    assert store.load(Cell.of(saved)).dropped == 3
    note = diverged([saved, replace(saved, dropped=1), full()])
    # Of all users in these cells, also in the one where nobody's diverged.
    assert "user-centric on emnist-covariate-shift (4 of 300)" in note
    assert diverged([full()]) == ""
    scaffold = ITEMS["held-out"].entries(PAPER)
    (entry,) = (e for e in scaffold if (e.scenario.name, e.algorithm) == DIVERGED)
    assert Store(RESULTS).load(Cell(entry, 12)).dropped == 13  # from before cells said so


def test_a_cell_says_how_it_was_computed(tmp_path):
    """Known mistake: it did not say whether it was compiled (docs/algorithms/fedmoe.md)."""
    how = "stacked: up to 539 users at a time, compiled, CUDA graphs"
    saved = full()
    machine = {**saved.origin.machine, "executor": how}
    saved = replace(saved, origin=replace(saved.origin, machine=machine))
    store, cell = Store(tmp_path), Cell.of(saved)
    store.save(cell, saved)
    assert store.load(cell).origin.machine["executor"] == how
    with store.write_csv().open() as f:
        (line,) = csv.DictReader(f)
    assert line["executor"] == how


def test_single_users_and_newcomers_come_back(tmp_path):
    """Curves of both halves to a hundredth of a percent, NaN where a user has no data."""
    rng = np.random.default_rng(0)
    entry = PAPER.entry(LABEL_SHIFT, "fedavg", rounds=9)
    values = {split: 100 * rng.random((10, 4)) for split in ("test", "validation")}
    values["validation"][:, 1] = np.nan
    come = {"before": {"mean": 50.0, "worst": np.nan}, "after": {"mean": 60.5, "worst": 10.0}}
    saved = result(entry, of_users={"by_user": values, "newcomers": come})
    sizes = {"test_sizes": [3, 4, 5, 6], "validation_sizes": [3, 0, 5, 6]}
    saved = replace(saved, population=replace(saved.population, **sizes))
    store, cell = Store(tmp_path), Cell.of(saved)
    store.save(cell, saved)
    back = store.load(cell)
    for split in values:
        np.testing.assert_allclose(back.by_user[split], values[split], atol=0.00501)
    assert back.population == saved.population
    assert back.newcomers["after"] == come["after"]
    assert np.isnan(back.newcomers["before"]["worst"])
    wrong = replace(saved, by_user={"test": values["test"][:, :3]})
    store.save(cell, wrong)
    with pytest.raises(UcflError, match="test values of users"):
        store.load(cell)


def test_cells_that_differ_have_names_that_do():
    cells = [
        Cell(entry, seed)
        for form in (PAPER, PAPER.with_rounds(20), EMBEDDED)
        for item in ITEMS.values()
        for entry in item.entries(form)
        for seed in (0, 1)
    ]
    names = {cell.name for cell in cells}
    assert len(names) == len(set(cells))
    changed = ENTRY.scenario.change({"lr": 0.2})
    assert Cell(type(ENTRY)(changed, ENTRY.algorithm), 0).name != Cell(ENTRY, 0).name


def test_a_scenario_field_that_is_added_later_keeps_stored_cells():
    class Later(Scenario):
        novelty: int = 0

    later = Later.model_validate(ENTRY.scenario.model_dump() | {"description": "in other words"})
    assert Cell(type(ENTRY)(later, ENTRY.algorithm), 0).name == Cell(ENTRY, 0).name


def test_cells_stored_with_an_initialisation_that_is_now_automatic_keep_their_names(tmp_path):
    chosen = ENTRY.scenario.change({"initialisation": "he-glorot"})
    assert ENTRY.scenario.initialisation is None
    assert Cell(type(ENTRY)(chosen, ENTRY.algorithm), 0).name == Cell(ENTRY, 0).name
    other = chosen.change({"initialisation": "own"})
    assert Cell(type(ENTRY)(other, ENTRY.algorithm), 0).name != Cell(ENTRY, 0).name
    store = Store(tmp_path)
    store.save(Cell.of(full()), full())
    assert store.every()[0].scenario.initialisation == "he-glorot"


def test_a_damaged_cell_is_said_to_be_and_is_to_do(tmp_path):
    store, cell = Store(tmp_path), Cell.of(full())
    store.save(cell, full())
    file = store.file(cell)
    whole = file.read_bytes()
    for damage in (b"", whole[:100], whole[:-200], whole[:500] + b"x" * 50 + whole[550:]):
        file.write_bytes(damage)
        with pytest.raises(UcflError, match="is damaged"):
            store.load(cell)
        said = []
        found = survey([cell], store, "cpu", said.append)
        assert found.to_do == [cell]
        assert len(said) == 1
        assert said[0].endswith("it is run again.")


def test_the_stored_cells_of_version_one_are_read_and_new_ones_have_a_checksum(tmp_path):
    stored = sorted((Path(__file__).parents[2] / "docs" / "results" / "cells").glob("*.npz"))
    old = [file for file in stored if b"sha256.npy" not in file.read_bytes()]
    assert old  # until all are made again
    for file in old[::10]:
        with np.load(file) as arrays:
            assert "format" not in json.loads(str(arrays["about"]))  # those are of format 1
    assert len(Store(Path(__file__).parents[2] / "docs" / "results").every()) == len(stored)
    Store(tmp_path).save(Cell.of(full()), full())
    with np.load(Store(tmp_path).file(Cell.of(full()))) as arrays:
        assert json.loads(str(arrays["about"]))["format"] == 2
        assert len(str(arrays["sha256"])) == 64


def test_a_cell_made_with_other_defaults_is_refused(tmp_path):
    store, record = Store(tmp_path), full()
    cell, facts = Cell.of(record), record.algorithm
    store.save(cell, record)
    assert store.load(cell) is not None
    other = dict(facts.hyper_parameters) | {next(iter(facts.hyper_parameters)): -1}
    store.save(cell, replace(record, algorithm=replace(facts, hyper_parameters=other)))
    with pytest.raises(UcflError, match="made with other settings"):
        store.load(cell)


def test_a_cell_under_anothers_name_is_refused(tmp_path):
    store = Store(tmp_path)
    store.save(Cell(ENTRY, 0), full(seed=0))
    store.file(Cell(ENTRY, 0)).rename(store.file(Cell(ENTRY, 1)))
    with pytest.raises(UcflError, match="made with other settings"):
        store.load(Cell(ENTRY, 1))


def test_the_csv_has_a_row_per_cell_and_says_what_was_run(tmp_path):
    store = Store(tmp_path)
    sweep = PAPER.entry(COVARIATE_SHIFT, "user-centric:variance_batch=330", 100)
    for made in (full(1), full(0), result(sweep), result(PAPER.entry(LABEL_SHIFT, "user-centric"))):
        store.save(Cell.of(made), made)
    with store.write_csv().open() as f:
        rows = list(csv.DictReader(f))
    assert [(row["scenario"], row["seed"], row["rounds"], row["n_k"]) for row in rows] == [
        (COVARIATE_SHIFT, "0", "300", "0.3333"),
        (COVARIATE_SHIFT, "1", "300", "0.3333"),
        (COVARIATE_SHIFT, "0", "100", "330"),
        (LABEL_SHIFT, "0", "300", "100"),
    ]
    assert rows[0]["mean_best"] == "50.000"
    assert {
        "algorithm",
        "streams",
        "worst_final",
        "best_round",
        "seconds",
        "device",
        "versions",
    } <= set(rows[0])


def test_the_forecast_knows_what_methods_cost(tmp_path):
    store = Store(tmp_path)
    entry = PAPER.entry(CONCEPT_SHIFT, "fedavg")
    store.save(Cell(entry, 0), result(entry))
    cells = [Cell(entry, 0), Cell(entry, 1), Cell(PAPER.entry(CONCEPT_SHIFT, "ditto"), 0)]
    found = survey([*cells, Cell(ENTRY, 0)], store, "cpu")
    assert [found.seconds[cell] for cell in found.to_do] == [12, 24, None]
    assert found.forecast == (
        "1 of 4 cells are there, 3 to do; 2 of them will take about 36 s; "
        "nothing finished tells how long 1 will take."
    )


def test_a_cell_from_before_an_option_was_there_is_read(tmp_path):
    store, record = Store(tmp_path), full()
    cell, facts = Cell.of(record), record.algorithm
    some = dict(list(facts.hyper_parameters.items())[1:])
    store.save(cell, replace(record, algorithm=replace(facts, hyper_parameters=some)))
    assert store.load(cell) is not None
