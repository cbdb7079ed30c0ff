"""Layers that couple the examples of a batch, made aware of padding and of who is training.

Users of different sizes are trained side by side by padding their batches. A loss ignores padding
by weighting it with zero; BatchNorm and Dropout need more, so a model is adapted once: BatchNorm
sees real examples only, and Dropout's masks come from the counter-based generator.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ucfl.federation.draws import counter_hash
from ucfl.federation.marks import centred, for_gpu, kept


@dataclass
class Moment:
    """What adapted layers must know about the batch now passing through the model.

    ``real`` marks its examples that are not padding ([batch], None: all are); ``key`` names the
    draw (seed, round, user and step, hashed).
    """

    real: Tensor | None = None
    key: Tensor | None = None


def adapt(model: nn.Module) -> tuple[nn.Module, Moment]:
    """A copy of the model with adapted layers, and the moment they read."""
    model = copy.deepcopy(model)
    moment = Moment()
    done: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children hides repetitions
            if id(child) not in done:
                if isinstance(child, _BatchNorm):
                    done[id(child)] = PaddedBatchNorm(child, moment)
                elif isinstance(child, _DropoutNd):
                    done[id(child)] = KeyedDropout(child, moment, salt=len(done))
                else:
                    continue
            setattr(parent, name, done[id(child)])
    return model, moment


class PaddedBatchNorm(nn.Module):
    """BatchNorm whose statistics are those of the real examples; else as PyTorch's.

    A single real value per channel, for which PyTorch raises, has variance 0 here.
    """

    num_batches_tracked: Tensor | None

    def __init__(self, layer: _BatchNorm, moment: Moment) -> None:
        super().__init__()
        self.eps, self.momentum, self._moment = layer.eps, layer.momentum, moment
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of [examples, channels, ...]."""
        mean, var = (
            cast("Tensor | None", self.running_mean),
            cast("Tensor | None", self.running_var),
        )
        given, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        if not self.training and mean is not None and var is not None:
            # In plain arithmetic: on a GPU, PyTorch's own asks for layouts that vmap cannot tell.
            factor = _weighted(torch.rsqrt(var + self.eps), self.weight)
            return _scaled(x - _along(mean, x), factor, self.bias).to(given)
        real = self._moment.real
        if real is not None:
            real = real.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        out, batch_mean, batch_var, count = _Normalised.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, real, self.eps
        )
        if self.training and mean is not None and var is not None:
            self._remember(mean, batch_mean)
            self._remember(var, batch_var * (count / (count - 1).clamp(min=1)))
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
        return cast(Tensor, out).to(given)

    def _remember(self, running: Tensor, value: Tensor) -> None:
        assert self.num_batches_tracked is not None
        share = self.momentum or 1.0 / (self.num_batches_tracked + 1)  # None: cumulative average
        running.copy_(running + share * (value.detach() - running))


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
        slope = _scaled(g - common, _once(_weighted(scale, weight)))
        if for_gpu(slope):
            slope = centred(slope.detach(), False)
        return slope, *((None, None) if weight is None else (along, beside)), None, None


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


class KeyedDropout(nn.Module):
    """Dropout whose mask depends only on the moment's key and the element's place."""

    def __init__(self, layer: _DropoutNd, moment: Moment, salt: int) -> None:
        super().__init__()
        self.p, self._moment, self._salt = layer.p, moment, salt
        # Dropout1d/2d/3d drop whole channels of an example.
        self._whole_channels = not isinstance(layer, nn.Dropout | nn.AlphaDropout)

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share p of the elements (or channels) and scale up the rest."""
        if not self.training or self.p == 0:
            return x
        drawn = x.shape[:2] if self._whole_channels else x.shape
        place = torch.arange(drawn.numel(), device=x.device).view(drawn)
        key = self._moment.key
        assert key is not None
        draw = counter_hash(key, self._salt, place).view(*drawn, *[1] * (x.dim() - len(drawn)))
        keep = draw >= int(self.p * 2**32)
        return x * keep / (1 - self.p)
