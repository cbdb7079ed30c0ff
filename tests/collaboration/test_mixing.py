import torch
from hypothesis import given
from hypothesis import strategies as st

from ucfl.collaboration import Mixing


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    groups=st.integers(1, 4),
)
def test_mixing_is_the_product_with_a_row_stochastic_matrix(sizes, seed, groups):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(sizes)
    labels = torch.randint(0, groups, (len(sizes),), generator=generator)
    theta = torch.randn(len(sizes), 7, dtype=torch.float64, generator=generator)
    for mixing in (Mixing.average(counts), Mixing.within(counts, labels)):
        matrix = mixing.streams[mixing.labels]
        assert torch.allclose(matrix.sum(1), torch.ones(len(sizes), dtype=torch.float64))
        assert (matrix >= 0).all()
        assert torch.allclose(mixing @ theta, matrix @ theta)
    assert Mixing.within(counts, labels).count == len(labels.unique())
