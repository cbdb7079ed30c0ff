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
