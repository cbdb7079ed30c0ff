"""Ranks over federations: what they must not depend on, and Demšar's published numbers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import friedmanchisquare

from ucfl.errors import UcflError
from ucfl.paper.ranks import (
    alike,
    block,
    critical_difference,
    friedman,
    holm,
    nemenyi_q,
    ranks,
    signed_rank,
)

tables = arrays(
    float,
    st.tuples(st.integers(2, 8), st.integers(3, 7)),
    elements=st.integers(0, 20).map(float),  # with ties
)


@given(tables, st.floats(0.1, 5), st.floats(-100, 100))
def test_a_rising_function_of_a_federation_changes_no_rank(values, scale, offset):
    changed = values.copy()
    changed[0] = scale * values[0] + offset
    changed[-1] = values[-1] ** 3
    np.testing.assert_array_equal(ranks(changed), ranks(values))


def test_a_method_without_a_value_is_last_and_the_others_keep_their_ranks():
    table = ranks(np.array([[70.0, np.nan, 80.0], [60.0, 50.0, 40.0]]))
    np.testing.assert_array_equal(table, [[2, 3, 1], [1, 2, 3]])


@given(tables, st.randoms())
def test_the_order_of_methods_and_federations_changes_nothing(values, random):
    order, rows = list(range(values.shape[1])), list(range(values.shape[0]))
    random.shuffle(order)
    random.shuffle(rows)
    table = ranks(values)
    np.testing.assert_array_equal(ranks(values[rows][:, order]), table[rows][:, order])
    ours, again = friedman(table), friedman(table[rows][:, order])
    assert (ours.chi2, ours.p) == pytest.approx((again.chi2, again.p))


@given(tables)
def test_ranks_of_a_federation_always_have_the_same_sum(values):
    k = values.shape[1]
    np.testing.assert_allclose(ranks(values).sum(1), k * (k + 1) / 2)


@given(tables)
def test_friedman_is_scipys(values):
    found = friedman(ranks(values))
    if all(len(set(row)) == 1 for row in values):  # scipy divides by zero
        assert (found.chi2, found.p) == (0, 1)
        return
    statistic, p = friedmanchisquare(*values.T)
    assert found.chi2 == pytest.approx(statistic, abs=1e-9)
    assert found.p_chi2 == pytest.approx(p, abs=1e-9)
    n, k = values.shape
    if found.f != math.inf:
        assert found.f == pytest.approx((n - 1) * statistic / (n * (k - 1) - statistic))


def test_equal_methods_do_not_differ_and_one_order_everywhere_differs_for_certain():
    assert friedman(ranks(np.ones((5, 3)))).p == 1
    same = friedman(ranks(np.tile([3.0, 2.0, 1.0], (5, 1))))
    assert (same.chi2, same.f, same.p) == (10, math.inf, 0)
    with pytest.raises(UcflError, match="2 federations and 3 methods"):
        friedman(ranks(np.ones((1, 3))))


#: Demšar 2006, table 5 (a), for 2 to 10 classifiers.
TABLE_5 = {
    0.05: (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164),
    0.10: (1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920),
}


@pytest.mark.parametrize("alpha", TABLE_5)
def test_critical_values_are_the_published_ones(alpha):
    found = [nemenyi_q(k, alpha) for k in range(2, 11)]
    assert found == pytest.approx(TABLE_5[alpha], abs=1.1e-3)


def test_the_published_example():
    """Demšar, sec. 3.2.4: four classifiers on 14 data sets, average ranks 3.143 … 1.964."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)
    average = {"C4.5": 3.143, "C4.5+m": 2.000, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}
    assert alike(average, 1.25) == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]
    assert alike(average, 1.12) == [
        ("C4.5+m+cf", "C4.5+m", "C4.5+cf"),
        ("C4.5+cf", "C4.5"),
    ]


@given(st.integers(2, 30), st.integers(1, 30))
def test_the_critical_difference_falls_with_the_root_of_the_federations(methods, federations):
    assert critical_difference(methods, 4 * federations) == pytest.approx(
        critical_difference(methods, federations) / 2
    )


@given(st.dictionaries(st.text(max_size=3), st.floats(1, 9), min_size=1), st.floats(0.1, 9))
def test_two_methods_are_in_one_set_exactly_if_they_do_not_differ(average, difference):
    sets = alike(average, difference)
    for one in average:
        for other in average:
            if one != other:
                together = any({one, other} <= set(each) for each in sets)
                assert together == (abs(average[one] - average[other]) < difference)


def test_a_block_is_of_methods_that_are_everywhere_and_of_seeds_that_all_have():
    scores = {
        "fedavg": {"a": {10: 1.0, 11: 3.0}, "b": {10: 1.0, 11: 1.0}, "c": {10: 1.0}},
        "local": {"a": {10: 2.0, 11: 2.0}, "b": {10: 2.0, 11: 2.0}},
        "few": {"a": {10: 3.0}, "b": {10: 0.0, 11: 9.0}},
        "oracle": {"a": {10: 9.0, 11: 9.0}},
    }
    found = block(scores, ["fedavg", "local"])
    assert found.methods == ("fedavg", "local", "few")
    assert found.federations == ("a", "b")  # nobody knows local on c
    assert found.seeds == {"a": (10,), "b": (10, 11)}
    np.testing.assert_array_equal(found.values, [[1, 2, 3], [1, 2, 4.5]])
    assert found.average == {"few": 1, "local": 2, "fedavg": 3}
    assert found.left_out == {"oracle": "nothing on b"}


def test_without_anything_to_compare_there_is_no_block():
    assert block({}, ["fedavg", "local"]) is None
    assert block({"fedavg": {"a": {10: 1.0}}}, ["fedavg", "local"]) is None
    apart_ = {"fedavg": {"a": {10: 1.0}}, "local": {"a": {11: 1.0}}}
    assert block(apart_, ["fedavg", "local"]) is None


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=9, unique=True), st.randoms())
def test_the_signed_rank_test_counts_the_signs_that_are_as_one_sided(sizes, random):
    """Of all 2^n signs, those whose smaller rank sum is at most that of the differences."""
    differences = np.array([size * random.choice((-1, 1)) for size in sizes], dtype=float)
    order = np.argsort(np.argsort(np.abs(differences))) + 1
    smaller = min(order[differences > 0].sum(), order[differences < 0].sum())
    sums = [
        min(order[np.array(up)].sum(), order[~np.array(up)].sum())
        for up in itertools.product((False, True), repeat=len(sizes))
    ]
    assert signed_rank(differences) == pytest.approx(np.mean(np.array(sums) <= smaller))


def test_differences_of_zero_speak_for_neither_side():
    assert signed_rank(np.zeros(5)) == 1
    clear = np.arange(1.0, 11.0)
    assert signed_rank(clear) < signed_rank(np.append(clear, np.zeros(5))) < 0.05


def test_the_published_signed_rank_example():
    """Demšar, sec. 3.1.3, table 2: C4.5 with and without pruning; R+ = 93, R− = 12, p < 0.05."""
    without = [
        0.763,
        0.599,
        0.954,
        0.628,
        0.882,
        0.936,
        0.661,
        0.583,
        0.775,
        1.0,
        0.94,
        0.619,
        0.972,
        0.957,
    ]
    pruned = [
        0.768,
        0.591,
        0.971,
        0.661,
        0.888,
        0.931,
        0.668,
        0.583,
        0.838,
        1.0,
        0.962,
        0.666,
        0.981,
        0.978,
    ]
    assert 0.005 < signed_rank(np.array(pruned) - np.array(without)) < 0.02


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1))
def test_holm_rejects_step_by_step(p_values):
    """Reference: from the smallest on, each against α over the number that is left."""
    found = holm(p_values)
    for alpha in (0.01, 0.05, 0.3):
        rejected = set()
        for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
            if p_values[name] * (len(p_values) - place) > alpha:
                break
            rejected.add(name)
        assert {name for name, p in found.items() if p <= alpha} == rejected
