"""Others' tables and natural users: which cells they have, and what is made of these."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from paper.making import result
from ucfl import paper
from ucfl.algorithms import find
from ucfl.paper import EMBEDDED, PAPER, Store, compared, natural, people, yardsticks
from ucfl.paper.yardsticks import FEDEM, PFLLIB


def cell(scenario, method, seed=0, *, mean=50.0, validation=None, form=PAPER, newcomers=None):
    """A cell of four users, of whom the first has all the data but three examples."""
    entry = form.entry(scenario.name, method)
    rounds = entry.scenario.rounds
    values = np.tile([mean + 6, mean - 2, mean - 2, mean - 2], (rounds + 1, 1))
    made = result(entry, seed, mean=mean, of_users={"by_user": {"test": values},
                                                    "newcomers": newcomers})  # fmt: skip
    curves = dict(made.curves)
    if validation is not None:
        curves["validation_mean"] = np.full(rounds + 1, validation)
    population = replace(made.population, test_sizes=[97, 1, 1, 1])
    return entry, replace(made, curves=curves, population=population)


def test_the_settings_are_the_publications():
    s = FEDEM.scenario
    assert (s.users, s.alpha, s.points, s.batch, s.rounds) == (100, 0.4, 81_425, 128, 200)
    assert (s.model, s.weight_decay, s.schedule) == ("cnn-2048", 5e-4, "steps:at=100+150")
    s = PFLLIB.scenario
    assert (s.users, s.alpha, s.held_out, s.batch, s.epochs) == (20, 0.1, 0.25, 10, 1)
    assert (s.model, s.rounds, s.dataset) == ("cnn-512", 2000, "fashion-mnist")
    for each in yardsticks.YARDSTICKS.values():
        assert [find(name).label for name in each.printed] == list(each.printed)
        assert each.source
        assert each.differs


def test_the_rate_is_chosen_by_validation_and_users_count_by_their_data():
    low, high = FEDEM.scenarios[0.01], FEDEM.scenarios[0.1]
    cells = [
        cell(low, "fedavg", 0, mean=80.0, validation=70.0),  # better on test data
        cell(high, "fedavg", 0, mean=60.0, validation=72.0),
        cell(high, "fedavg", 1, mean=62.0, validation=72.0),
    ]
    measured = {}
    for entry, record in cells:
        measured.setdefault(entry, []).append(record)
    rows = {row.method: row for row in compared.compare("fedem-emnist", FEDEM, PAPER, measured)}
    row = rows["fedavg"]
    assert (row.rate, row.seeds, row.rounds) == (0.1, 2, 200)
    by_hand = [(97 * (m + 6) + 3 * (m - 2)) / 100 for m in (60, 62)]
    assert row.measured.mean == pytest.approx(np.mean(by_hand))
    assert row.printed.mean == 82.6
    assert rows["local"].measured is None
    unweighed = replace(measured[cells[0][0]][0], by_user={})
    with pytest.raises(ValueError, match="no single users"):
        compared.means(unweighed, weighted=True)


def test_the_rate_is_chosen_over_the_seeds_that_all_rates_have():
    """Known mistake: a rate with an easy seed more looks better on every seed than it is."""
    low, high = FEDEM.scenarios[0.01], FEDEM.scenarios[0.1]

    def chosen(*cells):
        measured = {}
        for entry, record in cells:
            measured.setdefault(entry, []).append(record)
        rows = compared.compare("fedem-emnist", FEDEM, PAPER, measured)
        return next(row for row in rows if row.method == "fedavg")

    row = chosen(
        cell(low, "fedavg", 0, mean=60.0, validation=70.0),
        cell(high, "fedavg", 0, mean=55.0, validation=65.0),
        cell(high, "fedavg", 1, mean=90.0, validation=95.0),
    )
    assert (row.rate, row.seeds) == (0.01, 1)
    apart = chosen(cell(low, "fedavg", 0), cell(high, "fedavg", 1))
    assert (apart.measured, apart.rate, apart.seeds) == (None, None, 0)


def test_ranks_are_among_methods_that_have_both():
    rate = PFLLIB.scenarios[0.005]
    measured = {}
    for name, mean in (("fedavg", 80.0), ("ditto", 90.0), ("fedala", 85.0), ("local", 95.0)):
        entry, record = cell(rate, name, mean=mean)
        measured[entry] = [record]
    rows = compared.compare("pfllib-fashion", PFLLIB, PAPER, measured)
    assert compared.ranks(rows) == {"fedavg": (3, 3), "ditto": (2, 1), "fedala": (1, 2)}
    table = compared.table("pfllib-fashion", PAPER, measured)
    assert table.note == "1 of 11 printed values are within 1.5 points; 8 are not measured yet."


def test_the_csv_has_the_columns_that_were_asked_for(tmp_path):
    store = Store(tmp_path)
    entry, record = cell(PFLLIB.scenarios[0.005], "fedavg", mean=80.0)
    store.save(paper.Cell(entry, 0), record)
    rows = list(csv.DictReader(io.StringIO(compared.yardsticks_csv(PAPER, store))))
    columns = ["yardstick", "method", "printed", "measured", "std", "seeds", "rounds"]
    assert list(rows[0])[:7] == columns
    assert len(rows) == len(FEDEM.printed) + len(PFLLIB.printed)
    found = next(row for row in rows if row["yardstick"] == "pfllib-fashion")
    assert (found["printed"], found["seeds"], found["rounds"]) == ("85.85", "1", "2000")
    assert float(found["measured"]) == pytest.approx((97 * 86 + 3 * 78) / 100, abs=0.01)


def test_every_method_but_the_told_one_serves_natural_users():
    for scenario in natural.SCENARIOS.values():
        names = natural.methods(scenario)
        assert "oracle" not in names
        assert {"fedavg", "local", "ditto", "pfedme", "user-centric"} <= set(names)
    cells = paper.in_order(paper.find(["natural"]), PAPER)
    assert {c.seed for c in cells} == {0, 1, 2, 3, 4}


def test_the_sentence_says_where_personalisation_does_not_pay():
    scenario = natural.FEDERATIONS["watch-people"]

    def told(chosen=None, **values):
        measured = {}
        for name, each in values.items():
            for seed, mean in enumerate(each):
                validation = (chosen or {}).get(name, mean)
                entry, record = cell(scenario, name, seed, mean=mean, validation=validation)
                measured.setdefault(entry, []).append(record)
        return people.verdict(scenario.name, PAPER, measured)

    alone = [70.0, 71.0, 70.0]
    assert "Not enough cells" in told(fedavg=[80.0, 81.0], local=alone, ditto=[90.0, 91.0])
    assert "Not enough cells" in told()
    good = told(
        fedavg=[80.0, 82.0, 81.0], local=alone, ditto=[90.0, 91.0, 91.0], cfl=[75.0, 76.0, 75.0]
    )
    assert good.startswith("Personalisation pays here.")
    assert "the best personalised method is ditto (90.7" in good
    assert "9.7 points above (p = " in good
    assert good.endswith("1 of 2 personalised methods are below the model for all: cfl.")
    bad = told(fedavg=[90.0, 91.0, 90.5], local=alone, ditto=[86.0, 87.1, 86.5])
    assert bad.startswith("Personalisation does not pay here.")
    assert "ditto (86.5 ± 0.6). It is 4.0 points below (p = " in bad
    # Known mistakes: a seed without noise to hold a gain against; a hard one of FedAvg's alone;
    # a gain of one seed; the luckiest of many on test data.
    assert "Not enough cells" in told(fedavg=[80.0], local=[70.0], ditto=[80.1])
    seeds = {"local": [60.0, 61.0, 60.0], "ditto": [94.0, 94.1, 94.0]}
    more = told(fedavg=[95.0, 95.2, 95.1, 20.0], **seeds)
    assert more.startswith("Personalisation does not pay here.")
    lucky = told(fedavg=[80.0, 80.0, 80.0], local=alone, ditto=[80.0, 90.0, 79.0])
    assert lucky.startswith("Whether personalisation pays is not shown here.")
    luckiest = told(
        {"ditto": 85.0, "cfl": 90.0},
        fedavg=[80.0, 80.5, 80.0],
        local=alone,
        ditto=[95.0, 95.0, 95.2],
        cfl=[70.0, 70.5, 70.1],
    )
    assert luckiest.startswith("Personalisation does not pay here.")
    assert "is cfl (70.2" in luckiest


def test_newcomers_are_in_the_table():
    scenario = natural.FEDERATIONS["watch-people"]
    come = {"before": {"mean": 50.0, "worst": 40.0}, "after": {"mean": 61.0, "worst": 42.0}}
    entry, record = cell(scenario, "fedavg", newcomers=come)
    table = people.table(scenario.name, PAPER, {entry: [record]})
    row = next(row for row in table.rows if row[0] == "fedavg")
    assert row[-2:] == ["50.0", "61.0"]


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
def test_the_reduced_form_runs(tmp_path):
    """One method, trained for real on embedded images; newcomers and weights are kept."""
    items = paper.find(["natural", "yardsticks"])
    wanted = [c for c in paper.in_order(items, EMBEDDED, [0]) if c.entry.algorithm == "fedavg"]
    store = Store(tmp_path)
    assert paper.run_cells(wanted, store, device="cpu")
    found = paper.survey(wanted, store, "cpu")
    page = paper.make_page(items, EMBEDDED, found, store)
    assert {item.name for item in page.csvs} == {"natural", "yardsticks"}
    rows = page.to_json()["items"]["yardsticks"]
    there = [row for row in rows if row["measured"]]
    assert {row["method"] for row in there} == {"fedavg"}
    assert all(row["printed"] is None for row in rows)  # nothing is printed of stand-ins
    for rows in page.to_json()["items"]["natural"].values():
        assert next(row for row in rows if row["method"] == "fedavg")["after"] is not None
