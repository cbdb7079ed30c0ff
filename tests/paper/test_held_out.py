"""The held-out set: which cells, in which order, and what its CSV and tables say of them."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import ucfl
from paper.making import result
from ucfl import algorithms, paper
from ucfl.collaboration import Collaboration
from ucfl.paper import held_out
from ucfl.paper.held_out_tables import HELD_OUT, federations
from ucfl.paper.items import COVARIATE_LABEL_SHIFT, LABEL_SHIFT_100
from ucfl.paper.on_air import on_air
from ucfl.paper.printed import SCENARIOS as PRINTED
from ucfl.paper.standings import COLUMNS, found_groups, held_out_csv, results, standing
from ucfl.runs import curve
from ucfl.users import SCENARIOS
from ucfl.wireless import SYSTEMS, Audience, Traffic

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are tiny
FORM = paper.EMBEDDED
SET = paper.find(["held-out"])
PLACE = "mnist-rotations"
TRAINED = ("oracle", "fedavg", "cfl", "user-centric:streams=auto", "adaptive-user-centric")


def test_the_federations_are_others_than_the_papers_and_so_are_their_seeds():
    names = set(held_out.FEDERATIONS)
    natural = {name for name, each in SCENARIOS.items() if each.split == "natural"}
    assert not names & {*PRINTED, COVARIATE_LABEL_SHIFT, LABEL_SHIFT_100}
    assert names & {*SCENARIOS} == natural - {"shakespeare-roles", "shakespeare-transformer"}
    assert not {*held_out.MAIN_SEEDS} & {*held_out.DEVELOPMENT_SEEDS, *range(5)}
    assert {each.developed for each in held_out.FEDERATIONS.values()} == {True, False}
    for name, each in held_out.FEDERATIONS.items():
        assert each.scenario.name == name


@pytest.mark.parametrize("name", held_out.FEDERATIONS)
def test_every_stand_in_has_the_same_kind_of_users(name):
    real, small = held_out.FEDERATIONS[name].scenario, FORM.scenarios[name]
    users = small.build(0)
    groups = 1 if users.groups is None else len(users.groups.unique())
    split = "iid" if real.split == "natural" else real.split  # people are not embedded
    assert (groups, small.split, small.rotations) == (real.groups, split, real.rotations)
    assert small.permute_labels == real.permute_labels
    assert len(users) <= 20


def test_cells_come_seed_by_seed_and_the_main_methods_first():
    cells = paper.in_order(SET, paper.PAPER)
    assert len(cells) == len(set(cells))
    seeds = [cell.seed for cell in cells]
    assert seeds == sorted(seeds)
    assert set(seeds) == {10, 11, 12, 13, 14}
    for seed in held_out.MAIN_SEEDS:
        mains = [cell.entry.algorithm in held_out.MAIN for cell in cells if cell.seed == seed]
        assert mains == sorted(mains, reverse=True)
        assert all(mains) == (seed > 12)
    first = [cell for cell in cells if cell.seed == 10]
    assert first[-1].entry.algorithm == "scaffold"  # the dearest
    labels = {cell.entry.algorithm for cell in first}
    named = {*algorithms.REGISTRY, *held_out.VARIANTS, *held_out.PARTS}
    assert labels == named - {"parallel-user-centric", "fedbn"}
    for cell in cells:
        assert not held_out.needs_groups(cell.entry.algorithm) or cell.entry.scenario.groups > 1


def test_a_seed_that_is_not_reported_is_run_by_everything():
    def methods(*seeds):
        return {cell.entry.algorithm for cell in paper.in_order(SET, paper.PAPER, seeds)}

    every = {*held_out.MAIN, *held_out.other_methods(), *held_out.PARTS}
    assert methods(13) == {*held_out.MAIN}
    assert methods(0) == methods(10) == every


def test_all_of_the_paper_leaves_it_out():
    assert "held-out" not in {item.name for item in paper.find(["all"])}
    assert [item.name for item in SET] == ["held-out"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A few tiny cells, stored."""
    store = paper.Store(tmp_path_factory.mktemp("held-out") / FORM.name)
    wanted = [("mnist-iid", "cfl", 10), *((PLACE, name, 10) for name in TRAINED)]
    wanted += [(PLACE, "fedavg", 11), (PLACE, "fedavg", 0)]
    cells = [paper.Cell(FORM.entry(*place), seed) for *place, seed in wanted]
    assert paper.run_cells(cells, store, device="cpu")
    return store, cells


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_has_exactly_its_columns_and_no_seed_that_is_not_reported(trained):
    store, cells = trained
    text = held_out_csv(FORM, store)
    head = "federation,algorithm,seed,mean_best,worst_best,mean_final,k,rand_index,models_down"
    assert text.splitlines()[0] == head == ",".join(COLUMNS)
    rows = table(text)
    assert len(rows) == len(cells) - 1
    assert {row["seed"] for row in rows} == {"10", "11"}
    assert held_out_csv(FORM, paper.Store(store.folder / "empty")).splitlines() == [head]


def test_a_row_says_what_the_run_would(trained, tmp_path):
    store, cells = trained
    rows = {
        (r["federation"], r["algorithm"], r["seed"]): r for r in table(held_out_csv(FORM, store))
    }
    for cell in cells[:6]:
        scenario, algorithm = cell.entry.scenario, cell.entry.algorithm
        row = rows[scenario.name, algorithm, str(cell.seed)]
        run = ucfl.run(scenario, algorithm, seed=cell.seed, out=tmp_path / cell.name)
        for who, when in (("mean", "best"), ("worst", "best"), ("mean", "final")):
            value = run.summary[who][when]
            assert float(row[f"{who}_{when}"]) == pytest.approx(value, abs=1e-3)
        down = run.checkpoint.traffic[:, 0].mean().item()
        assert float(row["models_down"]) == pytest.approx(down, rel=1e-3)
        learnt = run.collaboration
        labels = run.checkpoint.state.get("labels") if learnt is None else learnt.labels
        if algorithm in ("oracle", "fedavg"):  # they find nothing
            assert (row["k"], row["rand_index"]) == ("", "")
            continue
        assert int(row["k"]) == len(labels.unique())
        if scenario.groups == 1:
            assert row["rand_index"] == ""
        else:
            true = run.about["users"]["groups"]
            index = adjusted_rand_score(true, labels.numpy())
            assert float(row["rand_index"]) == pytest.approx(index, abs=1e-4)


ENTRY = paper.PAPER.entry(PLACE, "user-centric")


def test_a_cell_keeps_the_groups_that_a_method_found_in_a_part(tmp_path):
    """Its streams are of parts, or others than the groups; W may not have been measured."""
    store, plan = paper.Store(tmp_path), torch.tensor([0, 0, 1, 1])
    heard = Audience(((0.9, np.zeros(4, dtype=np.int64)), (0.1, np.array([0, 1, 2, 2]))))
    base = result(ENTRY, groups=[0, 0, 1, 1])
    measured = Collaboration(torch.eye(4).double(), plan, torch.zeros(4).double())
    for learnt in (Collaboration(labels=plan), measured):
        for audience in (heard, Audience.of(np.arange(4)), None):
            made = replace(base, collaboration=learnt, audience=audience)
            store.save(paper.Cell.of(made), made)
            back = store.load(paper.Cell.of(made))
            assert back.collaboration.labels.tolist() == plan.tolist()
            assert (back.collaboration.weights is None) == (learnt.weights is None)
            assert found_groups(back).tolist() == plan.tolist()
    assert found_groups(replace(base, audience=heard)).tolist() == [0, 1, 2, 2]
    told = paper.PAPER.entry(PLACE, "oracle")
    assert found_groups(result(told, labels=np.arange(4))) is None


def made_up(seeds=(10, 11), places=("mnist-rotations", "mnist-iid")):
    """Main methods in one order everywhere, and FedProx on one federation only."""
    cells = {}
    for place in places:
        for rank, name in enumerate(held_out.MAIN):
            if name == "oracle" and place == "mnist-iid":
                continue
            entry = paper.PAPER.entry(place, name)
            cells[entry] = [result(entry, s, mean=90.0 - 5 * rank + s, worst=50.0) for s in seeds]
    entry = paper.PAPER.entry("mnist-iid", "fedprox")
    return cells | {entry: [result(entry, 10, mean=99.0)]}


def test_ranks_are_of_methods_that_are_everywhere_and_not_of_the_oracle():
    found = results(paper.PAPER, made_up())
    order = [name for name in held_out.MAIN if name != "oracle"]
    made = standing(found)
    assert list(made.block.average) == order
    assert list(made.block.average.values()) == list(range(1, len(order) + 1))
    assert "fedprox" in made.block.left_out
    assert made.block.seeds == {"mnist-rotations": (10, 11), "mnist-iid": (10, 11)}
    assert made.test.p < 0.05
    assert json.dumps(made.to_json())
    assert standing(results(paper.PAPER, {})) is None


def test_natural_users_are_as_many_as_the_data_has():
    """Known mistake: the scenario's own number, which a natural split does not look at."""
    rows = {row[0]: row for row in federations(paper.PAPER).rows}
    assert rows["mnist-writers"][2] == rows["watch-people"][2] == "people"
    assert rows["emnist-six-rotations"][2] == "60"


def test_tables_say_what_was_measured_and_have_a_dash_for_the_rest():
    empty, full = (results(paper.PAPER, cells) for cells in ({}, made_up()))
    for name, make in HELD_OUT.items():
        for table in (make(empty), make(full)):
            assert {len(row) for row in table.rows} == {len(table.headers)}, name
    for name in ("mean", "worst"):
        cells = {cell for row in HELD_OUT[name](empty).rows for cell in row[2:]}
        assert cells == {"–", ""}  # nothing yet; and the oracle where there are no groups
    rows = {row[0]: row for row in HELD_OUT["mean"](full).rows}
    heads = HELD_OUT["mean"](full).headers
    assert rows["mnist-iid"][heads.index("fedavg")] == "95.5 ± 0.7"
    assert rows["mnist-iid"][heads.index("oracle")] == ""
    assert rows["mnist-iid"][1] == "seeds 0–2"
    assert rows["emnist-both"][1] == "no"
    ranks = HELD_OUT["ranks"](full)
    assert ranks.rows[0][:3] == ["fedavg", "1.00", "1.00"]
    assert "fedprox (nothing on mnist-rotations)" in ranks.note


def test_accuracies_side_by_side_are_over_the_same_seeds():
    """Known mistake: one method's seed more, with easier users, counted for it alone."""
    cells = made_up()
    entry = paper.PAPER.entry("mnist-rotations", "local")
    cells[entry] = [*cells[entry], result(entry, 12, mean=0.0, worst=0.0)]
    before, after = (results(paper.PAPER, each) for each in (made_up(), cells))
    for name in ("mean", "worst", "all-mean", "all-worst"):
        assert HELD_OUT[name](after).rows == HELD_OUT[name](before).rows


def test_time_on_air_is_to_fedavgs_final_accuracy_over_shared_seeds():
    entries = {name: paper.PAPER.entry(PLACE, name) for name in ("fedavg", "user-centric", "local")}
    cells = {
        "fedavg": [result(entries["fedavg"], s, mean=60.0) for s in (10, 11)],
        "user-centric": [result(entries["user-centric"], 10, mean=80.0, streams=4.0)],
        "local": [result(entries["local"], 10, mean=50.0, streams=0.0)],
    }
    cells["user-centric"] = [replace(r, start=Traffic(1, 0.5, 1)) for r in cells["user-centric"]]
    found = {one.algorithm: one for one in on_air(cells)}
    assert {one.target for one in found.values()} == {60.0}
    for system in SYSTEMS:
        expected = curve(cells["user-centric"], system).time_to(60.0)
        assert found["user-centric"].times[system] == expected
        assert found["local"].times[system] == np.inf
    own = found["user-centric"]  # 100 bytes of a model, four users
    assert (own.start_down, own.start_up, own.models_down) == (100, 200, 4)
    assert found["local"].to_json()["times"] == dict.fromkeys(SYSTEMS)
    assert "never" in found["local"].words()
    assert on_air({"local": cells["local"]}) == []


@pytest.fixture
def command(monkeypatch, capfd):
    """``ucfl reproduce held-out`` in this process: exit code, standard output, standard error."""
    from ucfl import cli

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ucfl", "reproduce", "held-out", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capfd.readouterr()

    return call


def test_the_list_has_every_cell_and_trains_nothing(trained, command, monkeypatch):
    monkeypatch.setattr("ucfl.paper.reproduce.federation", None)
    store, _ = trained
    options = ("--embedded", "--out", store.folder.parent, "--list")
    code, said, notes = command(*options, "--json")
    assert code == 0, notes
    listed = json.loads(said)
    assert len(listed["cells"]) == len(paper.in_order(SET, FORM))
    assert sum(cell["done"] for cell in listed["cells"]) == 7
    _, said, _ = command(*options, "--only", PLACE, "--algorithms", "fedavg,cfl")
    assert said.count("done") == 3  # of ten
    assert said.count("to do") == 7 + 1
    code, _, notes = command(*options, "--only", "mnist-rotation")
    assert code == 2
    assert "did you mean 'mnist-rotations'" in notes


def test_the_command_writes_tables_figures_and_the_csv_from_what_is_stored(trained, command):
    store, _ = trained
    options = ("--embedded", "--out", store.folder.parent, "--limit-seconds", 0)
    code, said, notes = command(*options, "--seeds", 10, "--json")
    assert code == 0, notes
    answer = json.loads(said)
    assert answer["claims"] == answer["goals"] == []
    assert len(answer["items"]["held-out"]["rows"]) == 6
    file = store.folder / "held-out.csv"
    assert answer["csvs"] == {"held-out": str(file)}
    assert file.read_text() == held_out_csv(FORM, store)  # of all seeds
    _, said, _ = command(*options, "--markdown")
    assert "| mnist-rotations | seeds 0–2 |" in said
    _, said, _ = command(*options)
    assert "Groups found – reduced form (embedded)" in said
    assert "What the paper claims" not in said


def test_killed_outright_it_goes_on_and_ends_with_the_same_csv(tmp_path, command):
    options = ["--embedded", "--rounds", "120", "--only", PLACE, "--algorithms", "local,fedavg,cfl"]
    options += ["--seeds", "10", "--device", "cpu"]
    started = subprocess.Popen(
        [sys.executable, "-m", "ucfl", "reproduce", "held-out", *options, "--out", tmp_path / "a"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    folder = tmp_path / "a" / "embedded-120-rounds"
    ends = time.monotonic() + 120
    while time.monotonic() < ends and not list(folder.glob("cells/*.npz")):
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.wait()
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("cells/*.npz")}
    assert 1 <= len(kept) < 3
    for out in ("a", "b"):
        code, _, notes = command(*options, "--out", tmp_path / out)
        assert code == 0, notes
    one, two = (tmp_path / out / folder.name / "held-out.csv" for out in ("a", "b"))
    assert len(table(one.read_text())) == 3
    assert kept == {file: file.stat().st_mtime_ns for file in kept}  # not run again
    assert one.read_text() == two.read_text()
    assert not list(folder.glob("unfinished/*"))


def test_its_interactive_pages_say_the_command_that_makes_them(trained, command):
    store, _ = trained
    options = ("--embedded", "--out", store.folder.parent, "--limit-seconds", 0, "--report")
    code, said, notes = command(*options, "--json")
    assert code == 0, notes
    files = json.loads(said)["reports"]
    assert sum(file is not None for file in files.values()) == 2
    text = (store.folder / f"report-embedded-{PLACE}.html").read_text()
    assert f"ucfl reproduce held-out --embedded --only {PLACE} " in text


def test_what_a_part_is_worth_is_told_over_federations_on_the_seeds_that_both_have():
    """Changes of +1 and -4 here, and none where the two share no seed."""
    part = f"{held_out.LAYERED}:prior=False"
    places = ("mnist-rotations", "mnist-iid", "mnist-pixels")
    values = {
        (places[0], held_out.LAYERED): {10: 80.0, 11: 0.0},
        (places[0], part): {10: 81.0},
        (places[1], held_out.LAYERED): {10: 60.0},
        (places[1], part): {10: 56.0, 11: 99.0},
        (places[1], "fedper"): {10: 30.0},
        (places[2], held_out.LAYERED): {10: 50.0},
        (places[2], part): {11: 10.0},
    }
    measured = {}
    for (place, name), by_seed in values.items():
        entry = FORM.entry(place, name)
        measured[entry] = [result(entry, seed, mean=mean) for seed, mean in by_seed.items()]
    table = HELD_OUT["worth"](results(FORM, measured))
    rows = {tuple(row[:2]): row[2:] for row in table.rows}
    own = held_out.LAYERED
    assert rows["no priors", own] == ["2", "-1.5", "-4.0 (mnist-iid)", "+1.0 (mnist-rotations)"]
    assert rows["one body for all", own] == ["0", "–", "–", "–"]
    assert rows["FedPer", own] == ["1", "-30.0", "-30.0 (mnist-iid)", "-30.0 (mnist-iid)"]


LAYERED = held_out.LAYERED


def placed(values, place=PLACE):
    """Cells of one federation: by method and seed, the mean and the worst user's accuracy."""
    cells = {}
    for name, by_seed in values.items():
        entry = paper.PAPER.entry(place, name)
        cells[entry] = [
            result(entry, seed, mean=mean, worst=worst) for seed, (mean, worst) in by_seed.items()
        ]
    return results(paper.PAPER, cells)


def test_margins_are_on_the_seeds_that_both_have():
    """Known mistake: a difference of two averages over different seeds."""
    found = placed(
        {
            LAYERED: {10: (60.0, 30.0), 11: (70.0, 20.0)},
            "oracle": {11: (69.5, 24.0)},
            "fedavg": {10: (50.0, 29.0), 11: (40.0, 20.0), 12: (99.0, 99.0)},
        }
    )
    rows = {row[0]: row[1:] for row in HELD_OUT["margins"](found).rows}
    assert rows[PLACE] == ["+0.5", "+20.0", "–", "-4.0", "+0.5", "–"]
    assert rows["mnist-iid"] == ["", "–", "–", "", "–", "–"]  # nobody can be told groups there


def test_margins_of_untouched_seeds_leave_the_others_out():
    found = placed(
        {
            LAYERED: {11: (60.0, 30.0), 12: (70.0, 20.0), 14: (72.0, 20.0)},
            "local": {11: (0.0, 0.0), 12: (69.0, 24.0), 14: (69.0, 24.0)},
        }
    )
    rows = {row[0]: row[1:] for row in HELD_OUT["margins-untouched"](found).rows}
    assert rows[PLACE] == ["–", "–", "+2.0", "–", "–", "-4.0"]


def test_the_best_other_method_is_named_and_those_ahead_are_counted():
    found = placed(
        {
            LAYERED: {10: (60.0, 30.0), 11: (70.0, 20.0)},
            "oracle": {10: (99.0, 99.0)},
            "ditto": {10: (61.0, 0.0), 11: (75.0, 0.0), 12: (0.0, 0.0)},
            "fedper": {10: (62.0, 0.0)},
            "fedavg": {10: (60.0, 0.0)},
            f"{LAYERED}:prior=False": {10: (98.0, 0.0)},
        }
    )
    rows = {row[0]: row[1:] for row in HELD_OUT["best-others"](found).rows}
    assert rows[PLACE] == ["65.0", "ditto", "68.0", "+3.0 ± 2.8", "2", "2 of 3"]
    assert rows["mnist-iid"] == ["–"] * 6


def test_one_seed_has_no_deviation_and_a_method_without_a_value_is_nowhere():
    nan = float("nan")
    found = placed(
        {
            LAYERED: {10: (60.0, 30.0), 11: (70.0, 20.0)},
            "apfl": {10: (nan, nan), 11: (nan, nan)},
            "ifca": {11: (66.0, 0.0)},
        }
    )
    rows = {row[0]: row[1:] for row in HELD_OUT["best-others"](found).rows}
    assert rows[PLACE] == ["70.0", "ifca", "66.0", "-4.0", "1", "0 of 1"]
    assert [row[0] for row in HELD_OUT["pairs"](found).rows] == ["ifca"]


def test_pairs_are_counted_over_federations_on_the_seeds_that_both_have():
    values = {
        "mnist-rotations": {
            LAYERED: {10: 80.0, 11: 0.0},
            "ditto": {10: 79.0},
            "oracle": {10: 80.5},
        },
        "mnist-iid": {LAYERED: {10: 60.0}, "ditto": {10: 60.0, 12: 0.0}, "fedper": {11: 99.0}},
        "mnist-pixels": {LAYERED: {10: 50.0}, "ditto": {10: 51.5}, "oracle": {10: 49.0}},
        "mnist-writers": {LAYERED: {10: 90.0}, "ditto": {10: 80.0}},
    }
    cells = {
        paper.PAPER.entry(place, name): [
            result(paper.PAPER.entry(place, name), seed, mean=mean)
            for seed, mean in by_seed.items()
        ]
        for place, each in values.items()
        for name, by_seed in each.items()
    }
    table = HELD_OUT["pairs"](results(paper.PAPER, cells))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["ditto"][:4] == ["2", "1", "1", "+2.4"]
    assert rows["oracle"][:4] == ["1", "0", "1", "+0.2"]
    assert set(rows) == {"ditto", "oracle"}  # no seed of fedper's is the layered method's
    assert HELD_OUT["pairs"](results(paper.PAPER, {})).rows == [["–"] * 6]


def test_who_is_first_on_air_is_sought_among_all_methods_but_the_oracle():
    flat = dict.fromkeys((10, 11), (60.0, 0.0))
    values = {"fedavg": flat, LAYERED: flat, "oracle": flat}
    (row,) = HELD_OUT["air-first"](placed(values)).rows
    names = row[3::2]
    assert row[:2] == [PLACE, "60.0"]
    assert all(name.endswith("(fedavg)") for name in names)  # both as soon: the first by name
    assert "3 of 1" not in HELD_OUT["air-first"](placed(values)).note
    assert "on this many of 1 federations: 1 in " in HELD_OUT["air-first"](placed(values)).note
    sooner = dict.fromkeys((10, 11), (66.1, 0.0))  # 60% in 10 / 11 of the time
    late = placed({**values, "fedprox": sooner})
    (row,) = HELD_OUT["air-first"](late).rows
    assert all(name.endswith("(fedprox)") for name in row[3::2])
    far = placed({**values, "fedprox": dict.fromkeys((10, 11), (90.0, 0.0))})
    assert "on this many of 1 federations: 0 in " in HELD_OUT["air-first"](far).note
    assert HELD_OUT["air-first"](placed({})).note == ""


def test_the_table_of_all_methods_has_those_with_cells_and_names_the_others():
    entry = FORM.entry("mnist-iid", "fedavg")
    table = HELD_OUT["all-mean"](results(FORM, {entry: [result(entry, 10, mean=70.0)]}))
    assert [row[0] for row in table.rows] == ["fedavg"]
    assert "No cells yet: oracle, local" in table.note
    nothing = HELD_OUT["all-mean"](results(FORM, {}))
    assert {cell for row in nothing.rows for cell in row} == {"–"}
