"""Sketches keep distances as well as they say."""

import numpy as np
import pytest
import torch

from ucfl.collaboration import gradient_distances, sketch
from ucfl.errors import UcflError


@pytest.mark.parametrize("size", [100, 1000])
def test_squared_distances_are_right_in_the_mean_with_the_stated_deviation(size):
    rows = torch.randn(12, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    true = gradient_distances(rows)[np.triu_indices(12, 1)]
    errors = [
        gradient_distances(sketch(rows, size, seed))[np.triu_indices(12, 1)] / true - 1
        for seed in range(200)
    ]
    errors = torch.stack(errors)
    assert abs(float(errors.mean())) < 0.2 * (2 / size) ** 0.5
    assert float(errors.std()) == pytest.approx((2 / size) ** 0.5, rel=0.15)


def test_it_is_linear_and_the_same_for_every_user():
    rows = torch.randn(3, 50, dtype=torch.float64)
    whole = sketch(rows, 7, seed=4)
    alone = torch.cat([sketch(row[None], 7, seed=4) for row in rows])
    assert torch.allclose(whole, alone)
    assert torch.allclose(sketch(2 * rows[:1] - rows[1:2], 7, seed=4), 2 * whole[:1] - whole[1:2])
    assert not torch.allclose(whole, sketch(rows, 7, seed=5))


def test_no_numbers_are_no_sketch():
    with pytest.raises(UcflError, match="at least one number"):
        sketch(torch.zeros(2, 3), 0)
