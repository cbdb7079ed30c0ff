"""Candidates of the adaptive method: kernels in units of noise, and choices beyond doubt."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ucfl.collaboration import collaboration_weights, gradient_distances, noise_floor
from ucfl.collaboration.candidates import (
    NAMES,
    candidate,
    common_choice,
    kernel,
    own_choices,
)


def collaboration(m=8, dimensions=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(m, dimensions, dtype=torch.float64, generator=generator)
    sizes = torch.randint(5, 50, (m,), generator=generator)
    return gradients, sizes


@given(st.integers(2, 40))
def test_a_kernel_is_eq_7_with_its_bandwidth_in_units_of_noise(batches):
    """With equal noise s, eq. 7 from K batches is the kernel of width K − 1, for any K."""
    gradients, sizes = collaboration()
    floor = torch.full((8,), 0.7, dtype=torch.float64)
    variances = floor * (batches - 1)
    assert torch.allclose(noise_floor(variances, torch.full((8,), batches)), floor)
    paper = collaboration_weights(gradients, variances, sizes)
    ours = kernel(gradient_distances(gradients), floor, sizes, batches - 1)
    assert torch.allclose(ours, paper, atol=1e-12)


def test_widths_lead_from_local_to_fedavg():
    gradients, sizes = collaboration()
    distances, floor = gradient_distances(gradients), torch.full((8,), 0.1, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    each = {name: candidate(name, distances, floor, sizes, labels) for name in NAMES}
    for weights in each.values():
        assert torch.allclose(weights.sum(1), torch.ones(8, dtype=torch.float64))
        assert (weights >= 0).all()
    own = [float(each[name].diagonal().sum()) for name in NAMES if name not in ("hard", "fedavg")]
    assert own == sorted(own, reverse=True)  # local first, then wider and wider
    assert torch.allclose(kernel(distances, floor, sizes, 1e12), each["fedavg"])
    assert torch.allclose(kernel(distances, floor, sizes, 1e-9), each["local"])
    inside = labels[:, None] == labels[None, :]
    assert (each["hard"][~inside] == 0).all()
    assert torch.allclose(each["hard"][0, :2], sizes[:2] / sizes[:2].sum().double())


def test_a_common_choice_changes_beyond_the_standard_error_only():
    rng = np.random.default_rng(0)
    base = torch.from_numpy(rng.normal(2, 0.5, 20))
    noise = torch.from_numpy(rng.normal(0, 0.1, 20))
    clear, doubtful = base - 0.1 + noise, base - 0.005 + noise
    assert common_choice(torch.stack([base, clear]), 0) == 1
    assert common_choice(torch.stack([base, doubtful - doubtful.mean() + base.mean()]), 0) == 0
    assert common_choice(torch.stack([base, clear]), 1) == 1
    gain = base - clear
    errors = float(gain.mean() / (gain.std() / len(gain) ** 0.5))
    assert common_choice(torch.stack([base, clear]), 0, doubt=0.9 * errors) == 1
    assert common_choice(torch.stack([base, clear]), 0, doubt=1.1 * errors) == 0


def test_users_without_validation_data_have_no_vote():
    losses = torch.tensor([[1.0, 1.0, torch.nan], [0.5, 0.4, torch.nan]])
    assert common_choice(losses, 0) == 1
    assert common_choice(torch.full((2, 3), torch.nan), 0) == 0


def test_own_choices_go_user_by_user_and_the_silent_follow_their_stream():
    losses = torch.full((2, 4, 6), torch.nan)
    losses[0, :3], losses[1, :3] = 1.0, 1.0
    losses[1, 0] = 0.5 + 0.01 * torch.arange(6)  # clearly better for user 0
    losses[1, 1, :2] = torch.tensor([0.99, 1.005])  # a little better: within its error
    losses[1, 2] = 0.3 + 0.01 * torch.arange(6)  # clearly better for user 2
    current, labels = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 0, 1, 1])
    assert own_choices(losses, current, labels).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_candidates_do_not_care_for_the_order_of_users(name):
    gradients, sizes = collaboration()
    floor = torch.rand(8, dtype=torch.float64) + 0.1
    labels = torch.tensor([0, 1, 0, 1, 2, 2, 0, 1])
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    before = candidate(name, gradient_distances(gradients), floor, sizes, labels)
    after = candidate(
        name, gradient_distances(gradients[order]), floor[order], sizes[order], labels[order]
    )
    assert torch.allclose(after, before[order][:, order])


def test_who_was_not_asked_keeps_its_choice():
    """Known mistake: absent users took the most frequent choice of those present."""
    losses = torch.full((3, 4, 2), torch.nan)
    losses[:, 0] = torch.tensor([[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    current, labels = torch.tensor([0, 2, 2, 0]), torch.zeros(4, dtype=torch.int64)
    asked = torch.tensor([True, False, False, True])
    assert own_choices(losses, current, labels, asked=asked).tolist() == [1, 2, 2, 1]
