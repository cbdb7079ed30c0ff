"""The quadratic programme behind pFedGraph, against a general solver and by its properties."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from conftest import close
from ucfl.collaboration import cosines, graph_weights
from ucfl.collaboration.graph import onto_simplex


@pytest.mark.parametrize("strength", [0.05, 0.8, 20.0])
@pytest.mark.parametrize("users", [1, 2, 7, 20])
def test_weights_solve_the_quadratic_programme(users, strength):
    rng = np.random.default_rng(users)
    similarity, sizes = rng.uniform(-1, 1, (users, users)), rng.integers(1, 100, users)
    shares = sizes / sizes.sum()
    found = graph_weights(torch.tensor(similarity), torch.tensor(sizes), strength)
    for row, ours in zip(similarity, found.numpy(), strict=True):
        solved = minimize(
            lambda w, s=row: strength * ((w - shares) ** 2).sum() - w @ s,
            shares,
            jac=lambda w, s=row: 2 * strength * (w - shares) - s,
            bounds=[(0, 1)] * users,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-16, "maxiter": 1000},
        )
        assert np.abs(ours - solved.x).max() < 1e-8


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(-10, 10))
def test_the_projection_is_on_the_simplex_and_does_not_see_a_shift(point, shift):
    point = torch.tensor(point, dtype=torch.float64)
    found = onto_simplex(point[None])[0]
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert close(onto_simplex(point[None] + shift)[0], found, atol=1e-9)
    assert close(onto_simplex(found[None])[0], found, atol=1e-12)
    # Nearer than any corner, and than the middle.
    corners = torch.eye(len(point), dtype=torch.float64)
    others = torch.cat([corners, corners.mean(0, keepdim=True)])
    assert ((found - point).norm() <= (others - point).norm(dim=1) + 1e-9).all()


def test_the_largest_entry_takes_all_where_nothing_else_can_be_told_apart():
    point = torch.tensor([[1e20, -1e20, 0.0]], dtype=torch.float64)
    assert onto_simplex(point).tolist() == [[1, 0, 0]]


def test_equal_users_get_their_shares_of_the_data():
    sizes = torch.tensor([1, 3, 4])
    assert close(graph_weights(torch.ones(3, 3), sizes, 0.8), (sizes / 8).double().expand(3, 3))


def test_cosines_are_those_of_pytorch_also_where_rows_are_long():
    rows = torch.randn(5, 9000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[3] = -2 * rows[1]
    expected = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=2)
    assert close(cosines(rows), expected, atol=1e-12)
    rows[2] = 0
    assert not cosines(rows)[2].any()
