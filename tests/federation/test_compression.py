"""Compressions: unbiased or contracting, as they say, and in as many bytes as they say."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.codec import decoded, encoded
from ucfl.errors import UcflError
from ucfl.federation import Links, Wire, compression
from ucfl.federation.compression import COMPRESSIONS, Quantise, Sketch, TopK, Whole
from ucfl.federation.draws import counter_hash, hashed_places, uniform_places
from ucfl.federation.wire import Message
from ucfl.parts import Part

LOSSY = [
    *("quantise:bits=8", "quantise:bits=4", "quantise:bits=3"),
    *("top-k:share=0.05", "sketch:share=0.1"),
]
lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=4)
seeds = st.integers(0, 2**31)


def messages(seed, lengths, rows=1, dtype=torch.float64):
    """Tensors whose scales are far apart, as those of updates are."""
    rng = np.random.default_rng(seed)
    each = [rng.normal(size=(rows, n)) * 10 ** rng.uniform(-4, 2) for n in lengths]
    return torch.from_numpy(np.concatenate(each, axis=1)).to(dtype)


@given(seed=seeds, lengths=lengths_of, bits=st.integers(2, 16))
def test_stochastic_rounding_is_unbiased(seed, lengths, bits):
    """By Hoeffding, a mean of 400 draws is further off than 0.2 steps with chance 2e-14."""
    x = messages(seed, lengths)
    keys = counter_hash(seed, torch.arange(400))
    mean = Quantise(bits).received(x.expand(400, -1), lengths, keys).mean(0)
    parts = zip(x[0].split(lengths), mean.split(lengths), strict=True)
    for part, found in parts:
        step = part.abs().max() / (2 ** (bits - 1) - 1)
        assert (found - part).abs().max() <= 0.2 * step * (1 + 1e-9)


@given(seed=seeds, lengths=lengths_of, bits=st.integers(2, 16))
def test_no_number_moves_by_a_step_and_the_largest_not_at_all(seed, lengths, bits):
    x = messages(seed, lengths)
    got = Quantise(bits).received(x, lengths, counter_hash(seed, torch.arange(1)))
    for part, found in zip(x[0].split(lengths), got[0].split(lengths), strict=True):
        step = part.abs().max() / (2 ** (bits - 1) - 1)
        assert (found - part).abs().max() < step * (1 + 1e-9)
        place = part.abs().argmax()
        assert torch.isclose(found[place], part[place], rtol=1e-12)


@given(seed=seeds, lengths=lengths_of, share=st.floats(0.01, 1))
def test_top_k_contracts(seed, lengths, share):
    """‖x − received‖² ≤ (1 − k/n) ‖x‖²."""
    x, n = messages(seed, lengths), sum(lengths)
    got = TopK(share).received(x, lengths, torch.zeros(1, dtype=torch.int64))
    count = int((got != 0).sum())
    assert count == min(n, math.ceil(round(share * n, 6)))
    assert (x - got).square().sum() <= (1 - count / n + 1e-12) * x.square().sum()
    assert torch.equal(got[got != 0], x[got != 0])


@given(seed=seeds, lengths=lengths_of, share=st.floats(0.01, 1))
def test_a_sketch_is_an_orthogonal_projection(seed, lengths, share):
    x, keys = messages(seed, lengths), counter_hash(seed, torch.arange(1))
    how = Sketch(share)
    got = how.received(x, lengths, keys)
    assert torch.isclose((x - got).square().sum() + got.square().sum(), x.square().sum())
    assert torch.allclose(how.received(got, lengths, keys), got, rtol=1e-9)  # twice is once


def test_a_sketch_keeps_its_share_of_the_length_in_the_mean():
    lengths, how = [400], Sketch(0.1)
    x = messages(0, lengths).expand(2000, -1)
    got = how.received(x, lengths, counter_hash(0, torch.arange(2000)))
    kept = (got.square().sum(1) / x.square().sum(1)).mean()
    assert kept == pytest.approx(0.1, abs=0.003)  # 14 standard errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSY)
@given(seed=seeds, lengths=lengths_of)
def test_what_arrives_fits_into_the_bytes_that_are_counted(name, dtype, seed, lengths):
    """Really encoded, and decoded again, by code that knows the docstrings alone."""
    how, x = compression(name), messages(seed, lengths, dtype=dtype)
    keys = counter_hash(seed, torch.arange(1))
    got = how.received(x, lengths, keys)[0].numpy()
    data = encoded(how, got, lengths, int(keys[0]))
    assert len(data) == how.bytes(lengths, x.element_size())
    again = decoded(how, data, lengths, int(keys[0]), got.dtype)
    assert np.allclose(again, got, rtol=1e-6, atol=0)


def test_bytes_by_hand():
    """Tensors of 150 and 6 numbers in float32."""
    sizes = [150, 6]
    assert compression("none").bytes(sizes, 4) == 624
    assert compression("quantise:bits=8").bytes(sizes, 4) == 150 + 4 + 6 + 4
    assert compression("quantise:bits=4").bytes(sizes, 4) == 75 + 4 + 3 + 4
    assert compression("quantise:bits=3").bytes(sizes, 4) == 57 + 4 + 3 + 4
    assert compression("top-k:share=0.05").bytes(sizes, 4) == 8 * 4 + 8  # 8 places of 8 bits
    assert compression("sketch:share=0.1").bytes(sizes, 4) == (15 + 1) * 4


def test_draws_by_key_and_place_are_uniform_and_depend_on_both():
    keys = counter_hash(3, torch.arange(50))
    drawn = uniform_places(keys, 2000).double()
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.005)  # 5 standard errors
    counts = torch.histc(drawn, 16, 0, 1)
    assert float(((counts - 6250) ** 2 / 6250).sum()) < 45  # χ² of 15 degrees: 1 in 10,000
    rows = torch.corrcoef(drawn)
    assert float((rows - torch.eye(50)).abs().max()) < 0.12
    assert torch.equal(hashed_places(keys, 2000)[7:8, :100], hashed_places(keys[7:8], 100))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zip", "compression"),
        ("quantise:bits=1", "bits=1"),
        ("quantise:bits=17", "bits=17"),
        ("quantise:levels=3", "option of quantise"),
        ("top-k:share=0", "share=0"),
        ("sketch:share=1.5", "share=1.5"),
        ("none:bits=8", "no options"),
    ],
)
def test_silly_compressions_are_refused_in_a_sentence(text, said):
    with pytest.raises(UcflError, match=said):
        compression(text)


def test_every_compression_can_be_named():
    assert {name: type(compression(name)) for name in COMPRESSIONS} == {
        "none": Whole,
        "quantise": Quantise,
        "top-k": TopK,
        "sketch": Sketch,
    }


def sent_up(name, changes, width):
    """What a server has of one user after so many rounds, and what the user owes."""
    part = Part("all", ((0, width),), width)
    message = Message(part, (width,), 0, 8)
    state, got = {}, torch.zeros(1, width, dtype=torch.float64)
    nothing, ids = torch.zeros_like(got), torch.zeros(1, dtype=torch.int64)
    for t, change in enumerate(changes, start=1):
        wire = Wire.of(Links.of(name, "none"), 0, t, state)
        got = got + wire.up(change[None], nothing, message, ids, None)
        state = dict(wire.after)
    return got[0], state


@pytest.mark.parametrize("name", ["top-k:share=0.1", "sketch:share=0.2"])
@given(seed=seeds, rounds=st.integers(1, 30))
def test_error_feedback_loses_nothing_for_good(name, seed, rounds):
    """Σ received + owed = Σ sent, and what is owed stays bounded."""
    changes = messages(seed, [30], rows=rounds)
    got, state = sent_up(name, changes, 30)
    assert torch.allclose(got + state["uplink/0"][0], changes.sum(0), atol=1e-9)


@settings(max_examples=20)
@given(seed=seeds)
def test_what_is_owed_with_top_k_stays_bounded(seed):
    """‖e‖² ≤ 4 (1 − δ) / δ² · max ‖change‖², δ = k/n (Karimireddy et al., 2019, Lemma 3)."""
    changes = messages(seed, [30], rows=100)
    _, state = sent_up("top-k:share=0.1", changes, 30)
    owed, delta = state["uplink/0"].square().sum(), 0.1
    assert owed <= 4 * (1 - delta) / delta**2 * changes.square().sum(1).max()


def test_unbiased_compression_owes_nothing():
    _, state = sent_up("quantise:bits=4", messages(0, [30], rows=3), 30)
    assert state == {}


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_arrives_as_it_is(name, bad):
    """And takes nothing of what its sender owes; the others' are as without it."""
    part = Part("all", ((0, 30),), 30)
    rows, ids = messages(0, [30], rows=3), torch.arange(3)
    broken = rows.clone()
    broken[1, 7] = bad
    found, owed = [], []
    for each in (rows, broken):
        wire = Wire.of(Links.of(name, "none"), 0, 1, {})
        found.append(wire.up(each, torch.zeros_like(rows), Message(part, (30,), 0, 8), ids, None))
        owed.append(wire.after.get("uplink/0", torch.zeros(3, 30)))
    assert torch.equal(found[1][1].nan_to_num(3.25), broken[1].nan_to_num(3.25))
    others = [0, 2]
    assert torch.equal(found[0][others], found[1][others])
    assert torch.equal(owed[0][others], owed[1][others])
    assert not owed[1][1].any()


def test_many_rows_are_compressed_in_blocks_of_the_same_result(monkeypatch):
    part = Part("all", ((0, 30),), 30)
    rows, ids, found = messages(0, [30], rows=7), torch.arange(7), []
    for size in (10**6, 65):
        monkeypatch.setattr("ucfl.federation.wire.AT_ONCE", size)
        wire = Wire.of(Links.of("sketch:share=0.2", "none"), 0, 1, {})
        found.append(wire.up(rows, torch.zeros_like(rows), Message(part, (30,), 0, 8), ids, None))
        found.append(wire.after["uplink/0"])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
