import math

import pytest
import torch

from ucfl.collaboration import Diagnosis, gradient_distances, noise_floor, spread


def drawn_round(m, n, k, distance, seed=0, dimensions=400):
    """Gradients and eq. 9's variances of users whose examples have unit variance."""
    generator = torch.Generator().manual_seed(seed)
    centres = distance * torch.randn(m, dimensions, generator=generator)
    examples = centres[:, None] + torch.randn(m, n, dimensions, generator=generator)
    full = examples.mean(1)
    batches = examples.view(m, k, n // k, dimensions).mean(2)
    variances = (batches - full[:, None]).square().sum(2).mean(1)
    return full, variances, torch.full((m,), k)


@pytest.mark.parametrize("k", [2, 3, 10, 30])
def test_the_noise_floor_is_the_variance_of_the_full_gradient_for_any_batch(k):
    full, variances, batches = drawn_round(60, 60, k, 0.0)
    assert noise_floor(variances, batches).mean().item() == pytest.approx(400 / 60, rel=0.05)
    assert measured(full, variances, batches) == pytest.approx(1.0, abs=0.05)


def measured(full, variances, batches):
    return spread(gradient_distances(full), noise_floor(variances, batches))


def test_spread_grows_with_the_distance_between_users():
    near = measured(*drawn_round(20, 60, 3, 0.1))
    far = measured(*drawn_round(20, 60, 3, 0.5))
    assert 1.3 < near < far


def test_spread_is_unknown_where_variances_rest_on_one_batch():
    full, variances, _ = drawn_round(4, 6, 3, 0.0)
    assert math.isnan(measured(full, variances, torch.ones(4, dtype=torch.int64)))
    some = measured(full, variances, torch.tensor([3, 3, 1, 1]))
    assert math.isfinite(some)


@pytest.mark.parametrize(
    ("diagnosis", "words"),
    [
        (Diagnosis(20, 2.5, 4, 0.5), "suggests k = 4"),
        (Diagnosis(20, 1.1, 4, 0.5), "hardly tell users apart"),
        (Diagnosis(20, 1.1, 4, 0.5), "initialisation"),
        (Diagnosis(20, 20.0, 2, 0.1), "by degrees"),
        (Diagnosis(20, float("nan"), 4, 0.5), "too few batches"),
        (Diagnosis(20, None, 4, 0.5), "The rows of W fall into groups"),
        (Diagnosis(20, None, 2, 0.1), "The rows of W differ by degrees"),
        (Diagnosis(1, float("nan"), 1, 0.0), "One user"),
    ],
)
def test_the_diagnosis_in_words(diagnosis, words):
    assert words in str(diagnosis)
    assert "\n" not in str(diagnosis)
    assert "nan" not in str(diagnosis)


def test_without_a_spread_it_speaks_of_w_alone():
    assert str(Diagnosis(9, None, 1, 0.0)).startswith("The rows of W do not fall into groups")
    assert "k = 3" in str(Diagnosis(9, None, 3, 0.8))
    assert "gradients" not in str(Diagnosis(9, None, 3, 0.8))
