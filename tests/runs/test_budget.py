"""Pareto fronts of stored runs: worked by hand, and chosen by validation."""

from dataclasses import replace

import numpy as np
import pytest

from ucfl.display import show_best
from ucfl.errors import UcflError
from ucfl.measure import ACCURACY
from ucfl.runs.budget import Spending, best_within, fronts_to_json, pareto_front, rivals


def spent(label, time, test, validation=None, joules=None):
    time, test = np.array(time, dtype=float), np.array(test, dtype=float)
    seen = np.atleast_2d(test).mean(0) if validation is None else np.array(validation, dtype=float)
    energy = np.full(len(time), np.nan) if joules is None else np.array(joules, dtype=float)
    tests = np.atleast_2d(test)
    return Spending(label, 1, 1, (), time, energy, seen, tuple(range(len(tests))), tests)


#: Local training is quick and ends at 30; the shared model is slow and ends at 50.
METHODS = {
    "local": spent("local", [0, 1, 2, 3], [0, 20, 30, 30]),
    "fedavg": spent("fedavg", [0, 2, 4, 6], [0, 10, 40, 50]),
    "oracle": spent("oracle", [0, 0.5, 1, 1.5], [0, 60, 70, 80]),
    "oracle, top-k up": spent("oracle, top-k up", [0, 0.1, 0.2, 0.3], [0, 60, 70, 80]),
}


def test_the_front_by_hand():
    front = pareto_front(METHODS, ACCURACY)
    assert [(p.label, p.round, p.cost, p.test) for p in front] == [
        ("local", 1, 1, 20),
        ("local", 2, 2, 30),
        ("fedavg", 2, 4, 40),
        ("fedavg", 3, 6, 50),
    ]
    assert best_within(front, 3.9, "3.9s").label == "local"
    assert best_within(front, 4, "4s").test == 40
    with pytest.raises(UcflError, match=r"within 0\.5s: the first one, of local, costs 1;"):
        best_within(front, 0.5, "0.5s")


def test_methods_are_chosen_by_validation_and_reported_on_test_data():
    lucky = spent("lucky", [0, 1], [0, 90], validation=[0, 15])
    front = pareto_front({**METHODS, "lucky": lucky}, ACCURACY)
    assert "lucky" not in {point.label for point in front}
    other = spent("other", [0, 1], [0, 5], validation=[0, 25])
    first = pareto_front({**METHODS, "other": other}, ACCURACY)[0]
    assert (first.label, first.validation, first.test) == ("other", 25, 5)


def test_without_powers_there_is_no_front_of_energy():
    assert pareto_front(METHODS, ACCURACY, "joules") == []
    with pytest.raises(UcflError, match="choose another"):
        best_within([], 5, "5J")
    told = fronts_to_json(METHODS, ACCURACY)
    assert told["fronts"]["joules"] == []
    assert told["methods"]["local"]["joules"] == [None] * 4
    with_power = {"local": spent("local", [0, 1], [0, 9], joules=[0, 7])}
    assert pareto_front(with_power, ACCURACY, "joules")[0].cost == 7


def test_a_best_point_has_its_deviation_and_the_others_are_tested_against_it():
    """Three seeds: one method is clearly behind, one only by chance, one is over the budget."""
    found = {
        "first": spent("first", [0, 1, 9], [[0, 60, 90], [0, 62, 90], [0, 64, 90]]),
        "near": spent("near", [0, 1, 2], [[0, 50, 66], [0, 50, 59], [0, 50, 60]]),
        "far": spent("far", [0, 2], [[0, 40], [0, 42.5], [0, 43.5]]),
        "late": spent("late", [0, 8], [[0, 99], [0, 99], [0, 99]]),
        "oracle": spent("oracle", [0, 1], [[0, 99], [0, 99], [0, 99]]),
    }
    best = best_within(pareto_front(found, ACCURACY), 3, "3s")
    assert (best.label, best.round, best.test, best.seeds) == ("first", 1, 62, 3)
    assert best.deviation == pytest.approx(2)
    assert best.text(ACCURACY) == "62.0 ± 2.0"
    others = rivals(found, ACCURACY, "time", 3, best)
    assert [(rival.point.label, rival.point.round) for rival in others] == [("near", 2), ("far", 1)]
    near, far = others
    assert not near.shown
    # By hand: differences of -6, 3 and 4 have t = 0.33 / (5.51 / √3), p = 0.93.
    assert near.p == pytest.approx(0.926, abs=1e-3)
    assert far.shown


def test_fewer_than_three_seeds_are_not_tested():
    found = {"a": spent("a", [0, 1], [[0, 60], [0, 62]]), "b": spent("b", [0, 1], [[0, 6], [0, 7]])}
    best = best_within(pareto_front(found, ACCURACY), 3, "3s")
    (rival,) = rivals(found, ACCURACY, "time", 3, best)
    assert (rival.p, rival.shown) == (None, False)
    one = {"a": spent("a", [0, 1], [0, 60])}
    assert pareto_front(one, ACCURACY)[0].text(ACCURACY) == "60.0"


def answered(capsys, found, limit):
    best = best_within(pareto_front(found, ACCURACY), limit, f"{limit}s")
    others = rivals(found, ACCURACY, "time", limit, best)
    show_best(found[best.label], best, others, ACCURACY, f"{limit}s")
    return " ".join(capsys.readouterr().out.split())


def test_a_method_that_is_better_on_test_data_is_named(capsys):
    """Known mistake: only those were named that a test does not tell from the one to take."""
    found = {
        "first": spent("first", [0, 1], [[0, 80], [0, 81], [0, 82]], validation=[0, 83]),
        "second": spent("second", [0, 1], [[0, 84], [0, 85.2], [0, 86.1]], validation=[0, 82]),
    }
    said = answered(capsys, found, 3)
    assert "By test data, second (85.1 ± 1.1%) is better (a paired test over seeds), but" in said


def test_seeds_that_methods_do_not_share_are_no_test(capsys):
    found = {
        "first": spent("first", [0, 1], [[0, 80], [0, 81], [0, 82]]),
        "second": replace(spent("second", [0, 1], [[0, 70], [0, 71], [0, 72]]), seeds=(7, 8, 9)),
    }
    said = answered(capsys, found, 3)
    assert "It shares too few seeds with second (71.0 ± 1.0%) for a test: run three or more" in said
