"""Mixing by parts of the model: Θ_b ← W_b Θ_b."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.parts import Part

P = 11


def random_parts(generator, count):
    """A partition of the columns into scattered parts, some of them perhaps empty."""
    owner = torch.randint(0, count, (P,), generator=generator).tolist()
    return [
        Part.joined(f"part {b}", [(i, i + 1) for i in range(P) if owner[i] == b], P)
        for b in range(count)
    ]


def random_mixing(generator, m, k):
    streams = torch.rand(k, m, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, k, (m,), generator=generator)
    return Mixing(streams / streams.sum(1, keepdim=True), labels)


cases = given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))


def drawn(m, k, count, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(m, P, dtype=torch.float64, generator=generator)
    parts = random_parts(generator, count)
    mixings = [random_mixing(generator, m, k) for _ in parts]
    present = torch.rand(m, generator=generator) < 0.6
    return theta, parts, mixings, present


@cases
def test_the_same_w_for_all_parts_is_the_whole_w_to_the_bit(m, k, count, seed):
    theta, parts, (mixing, *_), present = drawn(m, k, count, seed)
    for there in (None, present):
        whole, by_part = mixing.among(there), Mixing.by_part(dict.fromkeys(parts, mixing))
        by_part = by_part.among(there)
        assert torch.equal(by_part @ theta, whole @ theta)
        assert by_part.sent == pytest.approx(whole.sent)
        assert by_part.uploaded == pytest.approx(whole.uploaded)


@cases
def test_each_part_is_mixed_by_its_own_w(m, k, count, seed):
    theta, parts, mixings, present = drawn(m, k, count, seed)
    for there in (None, present):
        given_ = [mixing.among(there) for mixing in mixings]
        mixed = Mixing.by_part(dict(zip(parts, mixings, strict=True))).among(there) @ theta
        for part, mixing in zip(parts, given_, strict=True):
            assert torch.allclose(mixed[:, part.mask], mixing @ theta[:, part.mask], atol=1e-12)


@cases
def test_a_part_that_is_not_named_stays_with_its_user(m, k, count, seed):
    theta, (part, *_), (mixing, *_), present = drawn(m, k, count, seed)
    for there in (None, present):
        mixed = Mixing.by_part({part: mixing}).among(there) @ theta
        assert torch.equal(mixed[:, ~part.mask], theta[:, ~part.mask])
    assert torch.equal(Mixing.by_part({}).among(present) @ theta, theta)
    assert Mixing.by_part({}).sent == Mixing.by_part({}).uploaded == 0


def test_a_part_of_4_percent_with_20_streams_costs_0_8_models():
    head = Part("head", ((96, 100),), 100)
    own = Mixing(torch.eye(20, dtype=torch.float64), torch.arange(20))
    personal = Mixing.by_part({head: own})
    assert personal.sent == pytest.approx(0.8)
    assert personal.uploaded == pytest.approx(0.04)
    layered = Mixing.by_part({~head: Mixing.average(torch.ones(20, dtype=torch.int64)), head: own})
    assert layered.sent == pytest.approx(0.96 + 0.8)
    assert layered.uploaded == 1
    few = layered.among(torch.arange(20) < 5)
    assert few.sent == pytest.approx(0.96 + 5 * 0.04)  # streams that nobody hears are not sent


def test_a_weight_of_zero_is_not_multiplied_in_any_part():
    theta = torch.tensor([[1.0, 2], [torch.nan, 4]])
    first = Part("first", ((0, 1),), 2)
    alone = Mixing(torch.eye(2), torch.arange(2))
    mixed = (
        Mixing.by_part({first: alone, ~first: Mixing.average(torch.ones(2, dtype=torch.int64))})
        @ theta
    )
    assert mixed[0].tolist() == [1, 3]
    assert mixed[1, 1] == 3


def test_what_does_not_fit_is_told_in_one_sentence():
    average = Mixing.average(torch.ones(2, dtype=torch.int64))
    one, two = Part("one", ((0, 3),), 5), Part("two", ((2, 5),), 5)
    with pytest.raises(UcflError, match="'one' and 'two' have parameters in common"):
        Mixing.by_part({one: average, two: average})
    assert Mixing.by_part({one: average, two - one: average}).uploaded == 1
    with pytest.raises(UcflError, match="models of 5 and 6 parameters"):
        Mixing.by_part({one: average, Part("other", ((4, 6),), 6): average})
    with pytest.raises(UcflError, match="model of 5 parameters do not fit rows of 4"):
        _ = Mixing.by_part({one: average}) @ torch.zeros(2, 4)
