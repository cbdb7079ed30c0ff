"""Batch normalisation of the real examples of a padded batch, with its gradient written out.

What it gains: ``benchmarks/engine.py gpu``, the model ``vgg``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ucfl.execution.marks import centred, for_gpu, kept


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[examples, channels, ...] with each channel normalised; its mean, variance, number of values.

    ``real`` marks the examples that are not padding, as numbers that broadcast over x (None: all).
    """
    out, mean, var, count = _Normalised.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, real, eps
    )
    return out, mean, var, count


class _Normalised(torch.autograd.Function):
    """γ x̂ + β with x̂ = (x − μ) / √(σ² + ε), for each channel, with μ and σ² of the real examples.

    The gradient is written out, because it needs two sums, which are those of β and γ as well; a
    derivative of the formulas would need more, one after another:
    ∂x = (g − r (Σg + x̂ Σgx̂) / n) γ / √(σ² + ε), where r is 1 for the n real values, else 0.
    It has no derivative of its own on GPUs: nothing here asks for second ones.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, eps: float
    ) -> tuple[Tensor, ...]:
        across = [0, *range(2, x.dim())]
        everything = torch.full((), len(x), dtype=x.dtype, device=x.device)
        examples = everything if real is None else real.sum()
        count = (examples * x[0, 0].numel()).clamp(min=1)

        def average(values: Tensor) -> Tensor:
            return (values if real is None else values * real).sum(across) / count

        if real is None and for_gpu(x):  # in one pass; on a CPU that is slower
            var, mean = torch.var_mean(x, across, correction=0)
            difference = x - _along(mean, x)
        else:
            mean = average(x)
            difference = x - _along(mean, x)
            var = average(difference.square())
        factor = _once(_weighted(torch.rsqrt(var + eps), weight))
        out = _scaled(difference, factor, None if bias is None else _once(bias))
        return out, mean, var, count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, real, ctx.eps = inputs
        _, mean, var, count = output
        ctx.mark_non_differentiable(mean, var, count)
        ctx.save_for_backward(x, weight, real, mean, var, count)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, real, mean, var, count = ctx.saved_tensors
        scale = torch.rsqrt(var + ctx.eps)
        difference = x - _along(mean, x)
        beside, along = _summed(g), _summed(g * difference) * scale
        common = _scaled(difference, _once(scale * along / count), _once(beside / count))
        if real is not None:
            common = common * real
        dx = _scaled(g - common, _once(_weighted(scale, weight)))
        if for_gpu(dx):
            dx = centred(dx.detach(), False)
        return dx, *((None, None) if weight is None else (along, beside)), None, None


def _weighted(scale: Tensor, weight: Tensor | None) -> Tensor:
    return scale if weight is None else scale * weight


def _once(values: Tensor) -> Tensor:
    """Values per channel, computed once; only where no derivative of them is asked for."""
    return kept(values.detach()) if for_gpu(values) else values


def _scaled(x: Tensor, factor: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each channel times its factor, plus its bias."""
    x = x * _along(factor, x)
    return x if bias is None else x + _along(bias, x)


#: Pixels of an image from which on a GPU sums image by image. Else PyTorch's compiler sums parts
#: that begin anywhere in one, and finding every pixel's place then costs more than adding it.
LARGE_IMAGE = 512


def _summed(x: Tensor) -> Tensor:
    """Each channel's sum."""
    image = [*range(2, x.dim())]
    if for_gpu(x) and x[0, 0].numel() >= LARGE_IMAGE:
        return x.sum(image).sum(0)
    return x.sum([0, *image])


def _along(values: Tensor, x: Tensor) -> Tensor:
    """A value per channel, for [examples, channels, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))
