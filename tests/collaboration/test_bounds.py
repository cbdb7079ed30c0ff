"""Theorems 1 and 2: their values, their minimisers, and the limits the paper states."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize

from ucfl.collaboration.bounds import (
    Setting,
    jensen_shannon,
    label_divergences,
    optimal_weights,
    theorem_1,
    theorem_2,
)
from ucfl.errors import UcflError

SETTING = Setting(loss_range=2.0, vc_dimension=30, delta=0.1, gamma=0.05)
BOUNDS = {1: theorem_1, 2: theorem_2}


@st.composite
def problems(draw):
    m = draw(st.integers(1, 8))
    sizes = np.array(draw(st.lists(st.integers(1, 5000), min_size=m, max_size=m)), dtype=float)
    distances = st.one_of(st.just(0.0), st.floats(1e-4, 2))
    divergences = np.array(draw(st.lists(distances, min_size=m, max_size=m)))
    divergences[draw(st.integers(0, m - 1))] = 0.0  # the user itself
    return sizes, divergences


def test_values_by_hand():
    # Two users with 100 points each, w = (1/2, 1/2): √(Σ w²/n) = √(0.005).
    n, w, d = np.array([100.0, 100.0]), np.array([0.5, 0.5]), np.array([0.0, 0.4])
    complexity = math.sqrt(2 * 30 / 200 * math.log(math.e * 200 / 30))
    estimation = 2 * math.sqrt(0.005) * (complexity + math.sqrt(math.log(20)))
    assert theorem_1(w, n, d, SETTING) == pytest.approx(estimation + 2 * 0.2 + 0.1)
    assert theorem_2(w, n, d, SETTING) == pytest.approx(estimation + 2 * math.sqrt(2 * 0.2))


def test_without_the_extra_root_of_n_the_complexity_is_massarts():
    """E max_v Σ σ_k v_k ≤ r √(2 log |V|), |v| = r: against signs drawn for all thresholds."""
    n, w = np.array([30.0, 20.0]), np.array([0.7, 0.3])
    setting = Setting(loss_range=2.0, vc_dimension=1, delta=0.1, form="massart")
    radius = math.sqrt((w**2 / n).sum())
    growth = 1 + math.log(50)  # d log(eN/d) for d = 1
    by_hand = 2 * radius * (math.sqrt(2 * growth) + math.sqrt(math.log(20)))
    assert theorem_1(w, n, np.zeros(2), setting) == pytest.approx(by_hand)
    printed = Setting(loss_range=2.0, vc_dimension=1, delta=0.1)
    assert printed.estimation(50.0) < setting.estimation(50.0)
    # The largest weighted sum of signs over all thresholds of 50 points on a line.
    rng, shares = np.random.default_rng(0), np.repeat(w / n, n.astype(int))
    signs = rng.choice([-1, 1], (4000, 50)) * rng.permuted(np.tile(shares, (4000, 1)), axis=1)
    sums = np.concatenate([np.zeros((4000, 1)), np.cumsum(signs, axis=1)], axis=1)
    drawn = sums.max(axis=1).mean()
    assert drawn <= radius * math.sqrt(2 * growth)
    assert drawn > radius * math.sqrt(2 * growth / 50)  # so the printed form is no bound of it


@pytest.mark.parametrize("form", ["printed", "massart"])
def test_a_larger_class_never_has_a_smaller_bound(form):
    """Known mistake: d log(eN/d) falls below 0 for d > eN, and was cut to 0 there."""
    dimensions = [1, 5, 30, 300, 999, 1000, 1001, 2718, 2719, 48_846, 1e9]
    values = [Setting(vc_dimension=d, form=form).estimation(1000.0) for d in dimensions]
    assert values == sorted(values)
    assert values[-1] > values[0]
    assert Setting(vc_dimension=48_846).log_growth(1000.0) == pytest.approx(1000 * math.log(2))
    # Sauer's lemma counts what can be counted: subsets of fewer than d + 1 points.
    for d in (1, 3, 10):
        counted = math.log(sum(math.comb(60, k) for k in range(d + 1)))
        assert counted <= Setting(vc_dimension=d).log_growth(60.0)
    with pytest.raises(UcflError, match="greater than 0"):
        Setting(vc_dimension=0)


@settings(max_examples=100, deadline=None)
@given(problems())
@example((np.array([1.0, 1.0, 2881.0, 1.0, 1498.0]), np.array([0.0, 0.0, 0.052, 0.0, 0.0])))
@example((np.array([219.0, 361.0, 131.0, 1359.0]), np.array([0.0, 0.05078125, 0.0, 0.0])))
def test_theorem_1_minimiser_satisfies_the_optimality_conditions(problem):
    """On the simplex: equal partial derivatives where w > 0, no smaller ones where w = 0."""
    n, d = problem
    w = optimal_weights(n, d, SETTING, theorem=1)
    assert w.sum() == pytest.approx(1)
    assert (w >= 0).all()
    slope = SETTING.estimation(n.sum()) * w / n / math.sqrt((w**2 / n).sum()) + 2 * d
    level = (w * slope).sum()
    assert (slope >= level - 1e-4 * (1 + level)).all()
    assert np.abs(w * (slope - level)).max() <= 1e-4 * (1 + level)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([1, 2]), st.integers(0, 99))
def test_no_other_weights_do_better(problem, theorem, seed):
    n, d = problem
    bound, rng = BOUNDS[theorem], np.random.default_rng(seed)
    best = bound(optimal_weights(n, d, SETTING, theorem), n, d, SETTING)
    trials = [*rng.dirichlet(np.full(len(n), 0.3), 50), *rng.dirichlet(n / n.sum() * 5 + 0.01, 50)]
    trials += [*np.eye(len(n)), n / n.sum()]
    assert best <= min(bound(w, n, d, SETTING) for w in trials) + 1e-9


@pytest.mark.parametrize("theorem", [1, 2])
def test_a_general_solver_finds_nothing_better(theorem):
    rng = np.random.default_rng(0)
    bound = BOUNDS[theorem]
    for _ in range(5):
        n, d = rng.integers(10, 2000, 6).astype(float), rng.random(6) * 0.1
        d[0] = 0
        best = bound(optimal_weights(n, d, SETTING, theorem), n, d, SETTING)
        for start in [np.full(6, 1 / 6), n / n.sum(), *(0.9 * np.eye(6) + 0.1 / 6)]:
            found = optimize.minimize(
                lambda w, n=n, d=d: bound(np.maximum(w, 0), n, d, SETTING),
                start,
                method="SLSQP",
                bounds=[(0, 1)] * 6,
                constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            )
            assert best <= found.fun + 1e-6


@pytest.mark.parametrize("theorem", [1, 2])
def test_homogeneous_users_get_fedavgs_weights(theorem):
    n = np.array([10.0, 30, 60])
    np.testing.assert_allclose(optimal_weights(n, np.zeros(3), SETTING, theorem), n / 100)


@pytest.mark.parametrize("theorem", [1, 2])
def test_infinite_local_data_is_local_learning(theorem):
    n, d = np.array([1e12, 30, 60]), np.array([0, 0.1, 0.2])
    np.testing.assert_allclose(optimal_weights(n, d, SETTING, theorem), [1, 0, 0], atol=1e-6)


@pytest.mark.parametrize("theorem", [1, 2])
def test_far_users_are_left_out_and_near_ones_kept(theorem):
    n, d = np.full(4, 50.0), np.array([0, 0, 5.0, 5.0])
    np.testing.assert_allclose(optimal_weights(n, d, SETTING, theorem), [0.5, 0.5, 0, 0], atol=1e-9)


def test_a_matrix_of_divergences_gives_a_matrix_of_weights():
    d = np.array([[0, 0.01, 2], [0.01, 0, 2], [2, 2, 0]])
    weights = optimal_weights(np.array([50, 50, 50]), d, SETTING)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert weights[2, 2] == pytest.approx(1)
    assert weights[0, 1] > 0.4


def test_jensen_shannon_as_the_papers_text_defines_it():
    assert jensen_shannon([1, 0], [1, 0]) == 0
    assert jensen_shannon([1, 0], [0, 1]) == pytest.approx(2 * math.log(2))
    p, q = np.array([0.7, 0.3]), np.array([0.2, 0.8])
    middle = (p + q) / 2
    by_hand = (p * np.log(p / middle)).sum() + (q * np.log(q / middle)).sum()
    assert jensen_shannon(p, q) == pytest.approx(by_hand)


def test_label_divergences_of_counts():
    table = label_divergences([[10, 0], [0, 4], [5, 5]])
    assert np.allclose(np.diag(table), 0)
    assert np.allclose(table, table.T)
    assert table[0, 1] == pytest.approx(2 * math.log(2))
    with pytest.raises(UcflError, match="no empty user"):
        label_divergences([[1, 2], [0, 0]])


def test_senseless_input_is_one_sentence():
    with pytest.raises(UcflError, match="one length"):
        theorem_1([1.0], [1.0, 2.0], [0.0], SETTING)
    with pytest.raises(UcflError, match="positive"):
        optimal_weights([0.0, 1.0], [0.0, 1.0], SETTING)
