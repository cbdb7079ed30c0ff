"""Pooling by slices: PyTorch's numbers, and its slopes, however equal the pixels are."""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from conftest import close
from ucfl.execution.pooling import Pooling, _MaxPool
from ucfl.execution.tracing import trace


@pytest.mark.parametrize("kernel", [2, 3, (2, 4)])
@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"padding": 1}, {"divisor_override": 3}])
def test_pooling_agrees_with_pytorchs(kernel, options):
    """Tiling windows are added by slices; all other cases are left to PyTorch."""
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)

    def pooled(x):
        leaf = x.requires_grad_()
        out = F.avg_pool2d(leaf, kernel, **options)
        (slope,) = torch.autograd.grad((out * out).sum(), leaf)
        return out, slope

    graph = trace(pooled, [x])
    for ours, theirs in zip(graph(x), pooled(x), strict=True):
        assert close(ours, theirs, atol=1e-12)


#: 17x17 has more pixels than a byte can count.
MAX_POOLING = [
    *itertools.product([(6, 6), (7, 6), (7, 9)], [(2, 2), (3, 2), 2]),
    ((35, 17), 17),
    ((9, 9), 8),
]


def both(function, images):
    """What PyTorch and we make of many users' images, and of one's: slopes, then values."""

    def summed(x):
        out = function(x)
        return (out * torch.arange(1, out.numel() + 1).view(out.shape)).sum(), out

    one = torch.func.grad(summed, has_aux=True)
    many = torch.func.vmap(one)
    theirs = *many(images), *one(images[0])
    with Pooling():
        return theirs, (*many(images), *one(images[0]))


def few_values(*shape):
    """Many equal pixels, so that it matters which one counts; zero is one of the values."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(("size", "kernel"), MAX_POOLING, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}], ids=str
)
@pytest.mark.parametrize("relu", [False, True])
def test_max_pooling_by_windows_is_pytorchs(size, kernel, options, relu):
    def pooled(x):
        return F.max_pool2d(x.relu() if relu else x, kernel, **options)

    for theirs, ours in zip(*both(pooled, few_values(2, 3, 4, *size)), strict=True):
        assert torch.equal(ours, theirs)


def test_windows_of_one_pixel_are_no_view_of_the_image():
    x = few_values(3, 4, 6, 6)
    with Pooling():
        for stride in (None, (), [], 1):
            image = 1 * x
            torch.max_pool2d(image, [1, 1], *([] if stride is None else [stride])).zero_()
            assert torch.equal(image, x)


def test_what_cannot_be_learnt_from_is_pooled_as_well():
    x = few_values(3, 4, 6, 6)
    with torch.inference_mode(), Pooling():
        ours = F.max_pool2d(F.relu(2 * x), 2)
    assert torch.equal(ours, F.max_pool2d(F.relu(2 * x), 2))


def test_places_are_given_as_pytorch_gives_them():
    x = few_values(3, 4, 6, 6)
    with Pooling():
        values, places = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(places, F.max_pool2d(x, 2, None, 0, 1, False, True)[1])
    assert torch.equal(values, F.max_pool2d(x, 2))


def changed(x):
    """What went into ReLU, through a view of it."""
    h = 1 * x
    out = F.relu(h)
    h.view(-1)[0] += 9
    return out, h


def without_slope(x):
    with torch.no_grad():
        out = F.relu(x)
    return out, x


def cut_off(x):
    out = F.relu(1 * x)
    out.detach_()
    return out, x


RECTIFIED = {
    "layer": (lambda x: (nn.ReLU()(x), 0), True),
    "method": (lambda x: (x.relu(), 0), True),
    "function": (lambda x: (torch.relu(x), 0), True),
    "by name": (lambda x: (F.relu(input=x, inplace=False), 0), True),
    "used twice": (lambda x: (y := F.relu(x), y), True),
    "in place": (lambda x: (nn.ReLU(inplace=True)(1 * x), 0), False),
    "changed": (changed, False),
    "without slope": (without_slope, False),
    "cut off": (cut_off, False),
}


@pytest.mark.parametrize("case", RECTIFIED)
def test_a_maximum_of_relu_is_pytorchs_and_taken_of_windows(case, monkeypatch):
    """Not of every pixel, unless what went into ReLU was changed since, or has no slope."""
    rectified, of_windows = RECTIFIED[case]
    seen = []
    apply = _MaxPool.apply
    monkeypatch.setattr(_MaxPool, "apply", lambda *given: seen.append(given[2]) or apply(*given))

    def pooled(x):
        out, besides = rectified(x)
        return F.max_pool2d(input=out, kernel_size=2) + (besides * torch.ones_like(x)).sum()

    for theirs, ours in zip(*both(pooled, few_values(2, 3, 4, 6, 6)), strict=True):
        assert torch.equal(ours, theirs)
    assert set(seen) == {of_windows}


def test_a_maximum_of_relu_changed_since_is_of_what_it_is_now():
    """Only without slopes: PyTorch has none for that."""
    x = few_values(3, 4, 6, 6)
    with Pooling():
        out = torch.relu(x)
        out[0] -= 1
        ours = F.max_pool2d(out, 2)
    assert torch.equal(ours, F.max_pool2d(out, 2))
    assert ours.min() == -1
