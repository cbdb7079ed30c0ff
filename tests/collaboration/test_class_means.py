"""Distances of class prototypes without their noise, and which groups have the same inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ucfl.collaboration.prototypes import (
    ClassMeans,
    input_groups,
    nearest_groups,
    renamed,
)

FEATURES = 6


def drawn(centres, counts, rng, deviation=1.0):
    """What users send whose class c has features about centres[user, c]."""
    m, classes = counts.shape
    means, variances = np.zeros((m, classes, FEATURES)), np.zeros((m, classes))
    for i in range(m):
        for c in range(classes):
            n = int(counts[i, c])
            if n:
                examples = centres[i, c] + deviation * rng.standard_normal((n, FEATURES))
                means[i, c] = examples.mean(0)
                variances[i, c] = examples.var(0, ddof=1).sum() if n > 1 else 0.0
    return ClassMeans.of(means, variances, counts)


def random_sample(seed, m=5, classes=4):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, (m, classes))
    return drawn(rng.normal(size=(m, classes, FEATURES)), counts, rng)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_distances_are_the_formula_of_the_docstring(seed):
    sample = random_sample(seed)
    found = sample.pairs()
    for i in range(len(sample)):
        for j in range(len(sample)):
            both = [c for c in range(4) if sample.counts[i, c] and sample.counts[j, c] and i != j]
            weights = [1 / (1 / sample.counts[i, c] + 1 / sample.counts[j, c]) for c in both]
            apart = [
                ((sample.means[i, c] - sample.means[j, c]) ** 2).sum()
                - sample.noise[i, c]
                - sample.noise[j, c]
                for c in both
            ]
            assert found.weight[i, j] == pytest.approx(sum(weights))
            assert found.total[i, j] == pytest.approx(np.dot(weights, apart), abs=1e-9)
    assert np.isnan(found.distances[found.weight == 0]).all()


def test_users_of_one_distribution_are_at_distance_zero_whatever_their_labels_are():
    """The mean over many federations; with the noise left in it would be far from zero."""
    rng = np.random.default_rng(0)
    centres = np.broadcast_to(3 * rng.normal(size=(4, FEATURES)), (6, 4, FEATURES))
    spreads = []
    for _ in range(200):
        counts = rng.multinomial(20, rng.dirichlet(np.full(4, 0.3)), 6)
        spreads.append(drawn(centres, counts, rng).pairs().spread())
    assert abs(np.mean(spreads)) < 4 * np.std(spreads) / len(spreads) ** 0.5 + 0.02
    assert np.std(spreads) < 0.5


def test_the_spread_is_in_units_of_noise():
    """Users whose centres differ by a variance of v̄ / n about their mean have a spread of 1."""
    rng = np.random.default_rng(1)
    counts = np.full((40, 5), 10)
    own = rng.standard_normal((40, 1, FEATURES)) / 10**0.5
    centres = np.broadcast_to(own, (40, 5, FEATURES))
    assert drawn(centres, counts, rng).pairs().spread() == pytest.approx(1.0, abs=0.35)


def test_a_variance_of_few_examples_leans_on_everybodys():
    means, counts = np.zeros((2, 1, FEATURES)), np.array([[1], [101]])
    sample = ClassMeans.of(means, np.array([[0.0], [5.0]]), counts)
    assert sample.noise[0, 0] == pytest.approx(5.0)
    assert sample.noise[1, 0] == pytest.approx(5.0 / 101)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_pairs_with_others_are_those_of_all_together(seed):
    sample = random_sample(seed, m=7)
    everyone, some = (
        sample.pairs(),
        sample.of_users([0, 1]).pairs_with(sample.of_users(range(2, 7))),
    )
    for one, part in ((everyone.total, some.total), (everyone.weight, some.weight)):
        assert np.allclose(one[:2, 2:], part)


def test_kernel_rows_sum_to_one_and_fall_with_distance():
    rng = np.random.default_rng(2)
    centres = np.zeros((6, 3, FEATURES))
    centres[3:] += 4.0
    sizes = np.full(6, 30.0)
    found = drawn(centres, np.full((6, 3), 10), rng).pairs()
    weights = found.kernel(sizes, 2.0)
    assert np.allclose(weights.sum(1), 1)
    assert weights[0, :3].sum() > 0.999
    assert (weights.diagonal() >= weights.max(1) - 1e-12).all()
    wide = found.kernel(sizes, 1e9)
    assert np.allclose(wide, 1 / 6, atol=1e-4)


def test_newcomers_are_not_taken_for_the_users_whose_places_they_have():
    rng = np.random.default_rng(3)
    centres = np.zeros((4, 3, FEATURES))
    centres[2:] += 5.0
    sample = drawn(centres, np.full((4, 3), 10), rng)
    new = drawn(centres[::-1], np.full((4, 3), 10), rng)
    apart = new.pairs_with(sample)
    rows = apart.kernel(np.full(4, 30.0), 2.0, own=False)
    assert (rows[:2, 2:].sum(1) > 0.999).all()
    assert (rows[2:, :2].sum(1) > 0.999).all()
    assert nearest_groups(apart, np.array([0, 0, 1, 1])).tolist() == [1, 1, 0, 0]


def test_who_shares_no_class_with_anybody_goes_to_the_largest_group():
    rng = np.random.default_rng(4)
    counts = np.array([[5, 5, 0], [5, 5, 0], [5, 5, 0]])
    sample = drawn(np.zeros((3, 3, FEATURES)), counts, rng)
    new = drawn(np.zeros((1, 3, FEATURES)), np.array([[0, 0, 5]]), rng)
    assert nearest_groups(new.pairs_with(sample), np.array([0, 1, 1])).tolist() == [1]


def two_groups(rng, change):
    """Ten users, half of whom see classes through ``change`` of the centres [C, F]."""
    centres = 3 * rng.normal(size=(6, FEATURES))
    both = np.stack([centres] * 5 + [change(centres)] * 5)
    return drawn(both, np.full((10, 6), 12), rng)


LABELS = np.array([0] * 5 + [1] * 5)


@pytest.mark.parametrize("seed", range(10))
def test_renamed_classes_are_the_same_inputs_and_others_are_not(seed):
    rng = np.random.default_rng(seed)
    renamed_users = two_groups(rng, lambda centres: centres[[1, 2, 3, 4, 5, 0]])
    inputs, names = input_groups(renamed_users, LABELS)
    assert inputs.tolist() == [0] * 10
    # The second group calls c + 1 what the first calls c: its class c looks like their c + 1.
    assert names[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert names[9].tolist() == [5, 0, 1, 2, 3, 4]
    others = two_groups(rng, lambda centres: 3 * rng.normal(size=centres.shape))
    inputs, names = input_groups(others, LABELS)
    assert inputs.tolist() == LABELS.tolist()
    assert (names == np.arange(6)).all()


def test_groups_of_other_classes_share_their_inputs_for_nothing_says_otherwise():
    rng = np.random.default_rng(5)
    counts = np.array([[9, 9, 0, 0]] * 3 + [[0, 0, 9, 9]] * 3)
    sample = drawn(rng.normal(size=(6, 4, FEATURES)), counts, rng)
    assert input_groups(sample, np.array([0] * 3 + [1] * 3))[0].tolist() == [0] * 6


def test_what_renaming_leaves_is_the_best_assignments():
    """Against all permutations."""
    import itertools

    rng = np.random.default_rng(6)
    one, other = (
        drawn(rng.normal(size=(1, 4, FEATURES)), np.full((1, 4), 50), rng) for _ in range(2)
    )
    apart = ((one.means[0][:, None] - other.means[0]) ** 2).sum(2)
    apart = apart - one.noise[0][:, None] - other.noise[0]
    best = min(apart[range(4), order].mean() for order in itertools.permutations(range(4)))
    left, names = renamed(one, other)
    assert left == pytest.approx(best / apart.diagonal().mean())
    assert sorted(names.tolist()) == [0, 1, 2, 3]
    assert apart[range(4), names].mean() == pytest.approx(best)


def test_names_of_classes_that_are_not_there_are_those_that_are_left():
    rng = np.random.default_rng(7)
    centres = 5 * rng.normal(size=(1, 4, FEATURES))
    one = drawn(centres, np.array([[30, 30, 0, 30]]), rng)
    other = drawn(centres[:, [1, 0, 2, 3]], np.array([[30, 30, 30, 0]]), rng)
    names = renamed(one, other)[1].tolist()
    assert names[:2] == [1, 0]
    assert sorted(names) == [0, 1, 2, 3]
