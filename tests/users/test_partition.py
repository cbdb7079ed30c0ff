import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucfl.errors import UcflError, UcflWarning
from ucfl.users import partition


def is_partition(parts, points):
    together = np.concatenate(parts)
    return len(together) == len(set(together.tolist())) and set(together) <= set(range(points))


@given(
    users=st.integers(1, 30),
    per_user=st.integers(3, 30),
    classes=st.integers(1, 12),
    alpha=st.floats(1e-12, 1e6),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_always_ends_and_leaves_nobody_empty(users, per_user, classes, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, classes, users * per_user)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UcflWarning)
        parts = partition.dirichlet(labels, users, alpha, np.random.default_rng(seed))
    assert len(parts) == users
    assert is_partition(parts, len(labels))
    assert sum(map(len, parts)) == len(labels)
    assert min(map(len, parts)) >= partition.FEWEST


def test_dirichlet_says_when_it_had_to_adjust():
    labels = np.zeros(60, dtype=np.int64)
    with pytest.warns(UcflWarning, match="left .* of 20 users with under 3 points"):
        partition.dirichlet(labels, 20, 0.01, np.random.default_rng(0))


def test_dirichlet_skew_follows_alpha():
    labels = np.repeat(np.arange(10), 1000)

    def skew(alpha):
        parts = partition.dirichlet(labels, 20, alpha, np.random.default_rng(0))
        shares = [np.bincount(labels[p], minlength=10) / len(p) for p in parts]
        return np.mean([share.max() for share in shares])

    assert skew(0.1) > skew(1) > skew(100)
    assert skew(1000) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_dirichlet_refuses_senseless_alpha(alpha):
    with pytest.raises(UcflError, match="positive"):
        partition.dirichlet(np.zeros(9, dtype=np.int64), 3, alpha, np.random.default_rng(0))


def test_too_few_points_is_one_sentence():
    with pytest.raises(UcflError, match="5 points are too few for 3 users"):
        partition.dirichlet(np.zeros(5, dtype=np.int64), 3, 1.0, np.random.default_rng(0))


@given(points=st.integers(1, 500), users=st.integers(1, 50), seed=st.integers(0, 99))
def test_iid_deals_everything_out_evenly(points, users, seed):
    if points < users:
        with pytest.raises(UcflError, match="too few"):
            partition.iid(points, users, np.random.default_rng(seed))
        return
    parts = partition.iid(points, users, np.random.default_rng(seed))
    assert is_partition(parts, points)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == points
    assert max(sizes) - min(sizes) <= 1


def test_by_size_gives_what_was_asked():
    parts = partition.by_size(100, [5, 1, 40], np.random.default_rng(0))
    assert [len(part) for part in parts] == [5, 1, 40]
    assert is_partition(parts, 100)
    with pytest.raises(UcflError, match="only 100"):
        partition.by_size(100, [60, 41], np.random.default_rng(0))
    with pytest.raises(UcflError, match="at least 1"):
        partition.by_size(100, [60, 0], np.random.default_rng(0))


@given(points=st.integers(1, 1000), share=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_hold_out_keeps_training_data_first_then_test_then_validation(points, share, seed):
    train, validation, test = partition.hold_out(points, share, np.random.default_rng(seed))
    assert sorted([*train, *validation, *test]) == list(range(points))
    assert len(train) >= 1
    assert 0 <= len(test) - len(validation) <= 1
    if share > 0:
        assert len(test) >= (1 if points >= 2 else 0)
        assert len(validation) >= (1 if points >= 3 else 0)


def test_hold_out_halves_the_papers_share():
    train, validation, test = partition.hold_out(1250, 0.2, np.random.default_rng(0))
    assert (len(train), len(validation), len(test)) == (1000, 125, 125)


@given(
    users=st.integers(1, 40),
    classes=st.integers(1, 12),
    each=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_users_have_exactly_so_many_classes_and_share_them_evenly(users, classes, each, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 120))
    if each > classes:
        with pytest.raises(UcflError, match=f"there are {classes} classes"):
            partition.by_classes(labels, users, each, np.random.default_rng(seed))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UcflWarning)
        parts = partition.by_classes(labels, users, each, np.random.default_rng(seed))
    assert is_partition(parts, len(labels))
    assert all(len(np.unique(labels[part])) == each for part in parts)
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    having = (counts > 0).sum(0)
    assert np.ptp(having) <= 1
    for label in np.flatnonzero(having):
        assert counts[:, label].sum() == 120
        assert np.ptp(counts[counts[:, label] > 0, label]) <= 1


def test_classes_that_nobody_has_and_classes_that_are_too_small_are_said():
    labels = np.repeat(np.arange(10), 30)
    with pytest.warns(UcflWarning, match="leave 4 of 10 classes to nobody"):
        partition.by_classes(labels, 3, 2, np.random.default_rng(0))
    small = np.repeat([0, 1], [30, 2])
    with pytest.raises(UcflError, match="the 2 examples of class 1 are too few for the 4 users"):
        partition.by_classes(small, 4, 2, np.random.default_rng(0))
    with pytest.raises(UcflError, match="too few for 200 users"):
        partition.by_classes(np.repeat(np.arange(10), 30), 200, 2, np.random.default_rng(0))


@given(
    users=st.integers(1, 50),
    per_user=st.integers(3, 50),
    sigma=st.floats(1e-6, 100),
    seed=st.integers(0, 99),
)
def test_lognormal_sizes_are_all_points_and_leave_nobody_empty(users, per_user, sigma, seed):
    rng = np.random.default_rng(seed)
    sizes = partition.lognormal_sizes(users * per_user, users, sigma, rng)
    assert sum(sizes) == users * per_user
    assert min(sizes) >= partition.FEWEST


def test_lognormal_sizes_spread_as_sigma_says():
    sizes = partition.lognormal_sizes(10**8, 2000, 0.7, np.random.default_rng(0))
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.05)
    assert set(partition.lognormal_sizes(100, 10, 1e-9, np.random.default_rng(0))) == {10}
    with pytest.raises(UcflError, match="too few for 10 users"):
        partition.lognormal_sizes(29, 10, 1.0, np.random.default_rng(0))


def test_shares_are_met_and_nobody_is_below_the_fewest():
    assert partition.apportion(7, (1, 2, 4), 1) == [1, 2, 4]
    assert partition.apportion(10, (1, 2, 4), 1) == [1, 3, 6]
    assert partition.apportion(5, (1, 1e9, 1), 1) == [1, 3, 1]


@given(points=st.integers(1, 300), share=st.floats(0, 0.99))
def test_windows_are_held_out_in_time_and_none_overlaps_across_a_border(points, share):
    train, validation, test = partition.hold_out_in_time(points, share)
    assert len(train) >= 1
    together = [*train, *validation, *test]
    assert together == sorted(set(together))
    assert set(together) <= set(range(points))
    if share > 0 and points >= 5:
        assert train[-1] + 2 == validation[0]
        assert validation[-1] + 2 == test[0]
        assert test[-1] == points - 1
        assert 0 <= len(test) - len(validation) <= 1
    else:
        assert len(train) == points
