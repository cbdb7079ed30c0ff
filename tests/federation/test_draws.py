import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ucfl.federation.draws import counter_hash, orders


@given(
    seed=st.integers(0, 2**63 - 1),
    t=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    epochs=st.integers(1, 3),
)
def test_an_order_is_a_permutation_that_its_key_alone_decides(seed, t, sizes, epochs):
    ids, counts = torch.arange(len(sizes)), torch.tensor(sizes)
    drawn = orders(seed, t, ids, counts, epochs, max(sizes))
    for i, n in enumerate(sizes):
        for epoch in range(epochs):
            assert sorted(drawn[i, epoch, :n].tolist()) == list(range(n))
        alone = orders(seed, t, ids[i : i + 1], counts[i : i + 1], epochs, n)
        assert torch.equal(alone[0], drawn[i, :, :n])


def test_all_orders_are_equally_likely():
    drawn = orders(0, 1, torch.arange(24_000), torch.full((24_000,), 4), 1, 4)[:, 0]
    counts = np.unique(drawn.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


def test_every_part_of_the_key_matters():
    def first(seed=0, t=1, user=3):
        return orders(seed, t, torch.tensor([user]), torch.tensor([40]), 1, 40)

    base = first()
    assert torch.equal(first(), base)
    for other in (first(seed=1), first(t=2), first(user=4), first(seed=2**40)):
        assert not torch.equal(other, base)


def test_bits_are_fair():
    h = counter_hash(7, torch.arange(100_000))
    ones = np.array([((h >> bit) & 1).double().mean().item() for bit in range(32)])
    assert np.abs(ones - 0.5).max() < 0.01
    assert int(h.min()) >= 0
    assert int(h.max()) < 2**32
