"""Whether methods differ: the test's error rate, its power, and an independent computation."""

import numpy as np
import pytest
from scipy import stats

from ucfl.runs.paired import ERROR_RATE, sign_flip_test, t_test


def binomial_differences(rng, users, examples, gain=0.0):
    """Users that two methods serve with probabilities 0.6 and 0.6 + gain, by a few examples."""
    own = rng.uniform(0.4, 0.8, users)
    ours, theirs = (rng.binomial(examples, np.clip(own + g, 0, 1)) for g in (gain, 0.0))
    return 100 * (ours - theirs) / examples


@pytest.mark.parametrize(("users", "examples"), [(7, 6), (20, 6), (20, 100)])
def test_methods_that_do_not_differ_are_told_apart_no_more_often_than_said(users, examples):
    rng = np.random.default_rng(1)
    draws = 400
    found = sum(
        sign_flip_test(binomial_differences(rng, users, examples)) < ERROR_RATE
        for _ in range(draws)
    )
    # 5% plus three deviations of the count's own chance.
    assert found / draws < ERROR_RATE + 3 * np.sqrt(ERROR_RATE * (1 - ERROR_RATE) / draws)


def test_a_real_difference_is_found():
    rng = np.random.default_rng(2)
    found = [sign_flip_test(binomial_differences(rng, 20, 25, 0.15)) for _ in range(50)]
    assert np.mean(np.array(found) < ERROR_RATE) > 0.9


def test_the_top_of_six_equal_methods_is_rarely_called_the_best():
    """The best by its mean must be told from every other one, so choosing it costs nothing."""
    rng, draws, called = np.random.default_rng(3), 200, 0
    for _ in range(draws):
        own = rng.uniform(0.4, 0.8, 20)
        scores = rng.binomial(10, own, (6, 20)) / 10
        top = scores.mean(1).argmax()
        others = [row for place, row in enumerate(scores) if place != top]
        called += all(sign_flip_test(scores[top] - row) < ERROR_RATE for row in others)
    assert called / draws < ERROR_RATE + 3 * np.sqrt(ERROR_RATE * (1 - ERROR_RATE) / draws)


@pytest.mark.parametrize("users", [4, 9, 13])
def test_small_tests_are_exact(users):
    differences = binomial_differences(np.random.default_rng(users), users, 10, 0.1)
    reference = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_test(differences) == pytest.approx(reference.pvalue)


def test_many_users_are_tested_by_random_signs():
    differences = binomial_differences(np.random.default_rng(5), 40, 10, 0.05)
    reference = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=50_000, rng=7
    )
    assert sign_flip_test(differences) == pytest.approx(reference.pvalue, abs=0.02)


def test_few_users_show_nothing_and_equal_values_neither():
    assert sign_flip_test(np.array([5.0, 5.0, 5.0])) == pytest.approx(0.25)
    assert sign_flip_test(np.zeros(20)) == 1
    assert t_test(np.zeros(3)) == 1
    assert t_test(np.array([1.0, 1.0, 1.0])) == 0
    assert t_test(np.array([7.9, 8.1, 8.3])) == pytest.approx(
        stats.ttest_rel([7.9, 8.1, 8.3], [0, 0, 0]).pvalue
    )


def test_what_is_no_number_shows_nothing():
    """Known mistake: its deviation was no number either, and p was 0."""
    assert t_test(np.array([1.0, np.nan, 2.0])) == 1.0
    assert t_test(np.array([np.nan, np.nan, np.nan])) == 1.0
