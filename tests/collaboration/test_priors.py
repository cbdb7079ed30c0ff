"""Users' priors: what to add to a common model's outputs."""

import numpy as np
import pytest

from ucfl.collaboration.priors import concentration, log_priors, shifts


def counts_of(a, users, classes, examples, seed):
    rng = np.random.default_rng(seed)
    priors = rng.dirichlet(np.full(classes, a / classes), users)
    return np.stack([rng.multinomial(examples, row) for row in priors]).astype(float)


@pytest.mark.parametrize("a", [2.0, 10.0, 60.0])
def test_the_concentration_is_that_of_the_users(a):
    found = [concentration(counts_of(a, 60, 10, 150, seed))[1] for seed in range(5)]
    assert np.median(found) == pytest.approx(a, rel=0.25)


def test_users_with_one_distribution_of_labels_have_no_shift():
    """At the 5% of the test: of 200 federations, 10 in the mean (deviation 3)."""
    rng = np.random.default_rng(0)
    draws = [rng.multinomial(80, np.full(10, 0.1), 20).astype(float) for _ in range(200)]
    found = sum(np.isfinite(concentration(counts)[1]) for counts in draws)
    assert found <= 20


def test_a_shift_is_the_log_of_the_posterior_mean_over_the_groups_frequencies():
    counts = counts_of(5.0, 30, 6, 50, 1)
    q, a = concentration(counts)
    assert q.sum() == pytest.approx(1)
    found = log_priors(counts, np.zeros(30, np.int64))
    posterior = (counts + a * q) / (50 + a)
    assert np.allclose(np.exp(found) * q, posterior)
    assert np.allclose((np.exp(found) * q).sum(1), 1)


def test_groups_have_frequencies_of_their_own():
    counts = np.concatenate([counts_of(5.0, 20, 6, 50, seed) for seed in (2, 3)])
    groups = np.repeat([0, 1], 20)
    found = log_priors(counts, groups)
    for group in (0, 1):
        own = counts[groups == group]
        assert np.allclose(found[groups == group], log_priors(own, np.zeros(20, np.int64)))


def test_a_user_alone_keeps_its_model_as_it_is():
    assert not log_priors(np.array([[9.0, 1.0, 0.0]]), np.zeros(1, np.int64)).any()


def test_a_model_of_all_with_the_users_shift_is_the_users_bayes_classifier():
    """Two classes N(±1, 1) with prior q for all, π for the user: log-odds differ by the shift."""
    counts, q, a = np.array([[38.0, 2.0]]), np.array([0.5, 0.5]), 3.0
    shift = shifts(counts, q, a)[0]
    prior = (counts[0] + a * q) / (counts.sum() + a)
    x = np.linspace(-3, 3, 11)
    of_all = 2 * x + np.log(q[0] / q[1])
    of_the_user = 2 * x + np.log(prior[0] / prior[1])
    assert np.allclose(of_all + shift[0] - shift[1], of_the_user)
