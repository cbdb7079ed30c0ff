"""Eq. 7, against fifty digits."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ucfl.collaboration import collaboration_weights, gradient_distances
from ucfl.collaboration.weights import weights_from_distances
from ucfl.errors import UcflError

finite = st.floats(-100, 100, allow_subnormal=False)


@st.composite
def rounds(draw, most=7):
    """What a collaboration round may bring: gradients, variances over many scales, sizes."""
    m, p = draw(st.integers(1, most)), draw(st.integers(1, 5))
    gradients = draw(hnp.arrays(np.float64, (m, p), elements=finite))
    spread = max(1.0, float(((gradients - gradients.mean(0)) ** 2).sum(1).max()))
    # The largest exponent Δ/2σσ is then at most about 10⁵.
    scale = st.floats(2e-5, 1e3)
    variances = np.array(draw(st.lists(scale, min_size=m, max_size=m))) * spread
    sizes = np.array(draw(st.lists(st.integers(1, 10**6), min_size=m, max_size=m)))
    return gradients, variances, sizes


def fifty_digits(gradients, variances, sizes):
    """Eq. 7 as printed (but for the sum's index), in fifty digits and without any trick."""
    with mpmath.workdps(50):
        g = [[mpmath.mpf(float(x)) for x in row] for row in gradients]
        sigma = [mpmath.sqrt(mpmath.mpf(float(v))) for v in variances]
        n = [mpmath.mpf(int(s)) for s in sizes]
        m = len(g)
        table = np.zeros((m, m))
        for i in range(m):
            terms = []
            for j in range(m):
                delta = mpmath.fsum((a - b) ** 2 for a, b in zip(g[i], g[j], strict=True))
                terms.append(n[j] / n[i] * mpmath.exp(-delta / (2 * sigma[i] * sigma[j])))
            total = mpmath.fsum(terms)
            table[i] = [float(term / total) for term in terms]
        return table


@settings(max_examples=200, deadline=None)
@given(rounds())
def test_equal_to_fifty_digits(case):
    np.testing.assert_allclose(
        collaboration_weights(*case), fifty_digits(*case), rtol=1e-8, atol=1e-12
    )


def test_exact_for_exponents_down_to_minus_100_000():
    gradients = np.array([[0.0], [1.0], [1.0 + 1e-3]])
    variances = np.full(3, 5e-6)  # exponents: −100 000, −100 200, and −0.1 between the near ones
    case = gradients, variances, np.array([1000, 10, 30])
    ours, exact = collaboration_weights(*case), fifty_digits(*case)
    np.testing.assert_allclose(ours, exact, rtol=1e-9)
    assert ours[0, 0] == 1.0
    assert 0 < ours[1, 2] < 1


@given(rounds())
def test_rows_sum_to_one_and_nothing_is_negative(case):
    weights = collaboration_weights(*case)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-12)
    assert (weights >= 0).all()


@given(rounds(), st.integers(0, 2**31))
def test_renaming_users_renames_the_weights(case, seed):
    order = np.random.default_rng(seed).permutation(len(case[0]))
    weights = collaboration_weights(*case)
    renamed = collaboration_weights(*(array[order] for array in case))
    np.testing.assert_allclose(renamed, weights[np.ix_(order, order)], rtol=1e-8, atol=1e-12)


@given(rounds(), st.integers(0, 2**31))
def test_rotating_and_shifting_all_gradients_changes_nothing(case, seed):
    gradients, variances, sizes = case
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(gradients.shape[1],) * 2))
    moved = gradients @ turn + rng.normal(size=gradients.shape[1])
    np.testing.assert_allclose(
        collaboration_weights(moved, variances, sizes),
        collaboration_weights(*case),
        rtol=1e-7,
        atol=1e-10,
    )


@given(rounds())
def test_numpy_and_torch_agree_and_keep_their_kind(case):
    ours = collaboration_weights(*case)
    theirs = collaboration_weights(*(torch.from_numpy(array) for array in case))
    assert isinstance(ours, np.ndarray)
    assert isinstance(theirs, torch.Tensor)
    np.testing.assert_array_equal(ours, theirs.numpy())


def test_homogeneous_users_get_fedavgs_weights():
    sizes = np.array([10, 30, 60])
    weights = collaboration_weights(np.ones((3, 4)), np.full(3, 0.1), sizes)
    np.testing.assert_allclose(weights, np.tile([0.1, 0.3, 0.6], (3, 1)))


def test_infinite_local_data_is_local_learning():
    gradients = np.array([[0.0], [1.0], [2.0]])
    for variance in (1e-6, 0.0):
        weights = collaboration_weights(gradients, np.array([variance, 1, 1]), np.ones(3))
        np.testing.assert_allclose(weights[0], [1, 0, 0], atol=1e-12)
    alone = collaboration_weights(gradients, np.zeros(3), np.ones(3))
    np.testing.assert_array_equal(alone, np.eye(3))
    twins = collaboration_weights(np.zeros((2, 3)), np.zeros(2), np.array([1.0, 3.0]))
    np.testing.assert_allclose(twins, [[0.25, 0.75]] * 2)


@pytest.mark.parametrize(
    ("gradients", "variances", "sizes", "sentence"),
    [
        ([[np.nan], [1.0]], [1, 1], [1, 1], "NaN"),
        ([[0.0], [1.0]], [-1, 1], [1, 1], "not negative"),
        ([[0.0], [1.0]], [np.nan, 1], [1, 1], "finite"),
        ([[0.0], [1.0]], [1, 1], [1, 0], "at least one example"),
    ],
)
def test_senseless_input_is_one_sentence(gradients, variances, sizes, sentence):
    with pytest.raises(UcflError, match=sentence):
        collaboration_weights(np.array(gradients), np.array(variances), np.array(sizes))


def test_distances_survive_a_large_common_gradient():
    rng = np.random.default_rng(0)
    near = rng.normal(size=(5, 50)) * 1e-3
    far = near + 1e3
    exact = ((near[:, None] - near[None]) ** 2).sum(-1)
    np.testing.assert_allclose(gradient_distances(far), exact, rtol=1e-6)
    assert (np.diag(gradient_distances(far)) == 0).all()


def test_weights_from_known_distances():
    rng = np.random.default_rng(0)
    gradients, variances, sizes = rng.normal(size=(4, 3)), rng.random(4), rng.integers(1, 9, 4)
    np.testing.assert_array_equal(
        weights_from_distances(gradient_distances(gradients), variances, sizes),
        collaboration_weights(gradients, variances, sizes),
    )
