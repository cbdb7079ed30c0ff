"""Layers that couple the examples of a batch or draw random numbers, made pure functions.

Users of different sizes are trained side by side by padding their batches. A loss ignores padding
by weighting it with zero; BatchNorm and Dropout need more, so a model is adapted once: BatchNorm
sees real examples only, Dropout's masks come from the counter-based generator, and recurrent
layers are written as loops over time (:mod:`~ucfl.federation.recurrent`). Only PyTorch's own
classes are replaced; a subclass may do anything in its ``forward``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ucfl.execution import normalise
from ucfl.federation.draws import counter_hash
from ucfl.federation.recurrent import RECURRENT, Unrolled

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass
class Context:
    """What adapted layers must know about the batch now passing through the model.

    ``real`` marks its examples that are not padding ([batch], None: all are); ``key`` names the
    draw (seed, round, user and step, hashed).
    """

    real: Tensor | None = None
    key: Tensor | None = None


def adapt(model: nn.Module) -> tuple[nn.Module, Context]:
    """A copy of the model with adapted layers, and the context they read."""
    root = nn.ModuleList([copy.deepcopy(model)])  # the model itself may be such a layer
    context = Context()
    done: dict[int, nn.Module] = {}
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):  # named_children hides repetitions
            if child is None:
                continue
            if id(child) not in done:
                adapted = _adapted(child, context, salt=len(done))
                if adapted is None:
                    continue
                done[id(child)] = adapted
            setattr(parent, name, done[id(child)])
    return root[0], context


def _adapted(layer: nn.Module, context: Context, salt: int) -> nn.Module | None:
    if layer._forward_hooks or layer._forward_pre_hooks:  # they would be lost
        return None
    if type(layer) in BATCH_NORMS:
        return PaddedBatchNorm(cast(nn.BatchNorm1d, layer), context)
    if type(layer) in DROPOUTS:
        return KeyedDropout(cast(nn.Dropout, layer), context, salt)
    if type(layer) in RECURRENT and not cast(nn.LSTM, layer).dropout:
        return Unrolled(cast(nn.LSTM, layer))
    return None


class PaddedBatchNorm(nn.Module):
    """BatchNorm whose statistics are those of the real examples; else as PyTorch's.

    A single real value per channel, for which PyTorch raises, has variance 0 here.
    """

    num_batches_tracked: Tensor | None

    def __init__(self, layer: nn.BatchNorm1d, context: Context) -> None:
        super().__init__()
        self.eps, self.momentum, self._context = layer.eps, layer.momentum, context
        self.weight, self.bias = layer.weight, layer.bias
        self.num_features, self.affine = layer.num_features, layer.affine
        self.track_running_stats = layer.track_running_stats
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of [examples, channels, ...]."""
        mean, var = (
            cast("Tensor | None", self.running_mean),
            cast("Tensor | None", self.running_var),
        )
        given, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        if not self.training and mean is not None and var is not None:
            # In plain arithmetic: PyTorch's own depends on memory layouts.
            factor = torch.rsqrt(var + self.eps)
            factor = factor if self.weight is None else factor * self.weight
            out = (x - _per_channel(mean, x)) * _per_channel(factor, x)
            return (out if self.bias is None else out + _per_channel(self.bias, x)).to(given)
        real = self._context.real
        if real is not None:
            real = real.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        out, batch_mean, batch_var, count = normalise(x, self.weight, self.bias, real, self.eps)
        if self.training and mean is not None and var is not None:
            self._update(mean, batch_mean)
            self._update(var, batch_var * (count / (count - 1).clamp(min=1)))
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
        return out.to(given)

    def _update(self, running: Tensor, value: Tensor) -> None:
        assert self.num_batches_tracked is not None
        cumulative = 1.0 / (self.num_batches_tracked + 1)
        share = cumulative if self.momentum is None else self.momentum
        running.copy_(running + share * (value.detach() - running))


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """A value per channel, for [examples, channels, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


class KeyedDropout(nn.Module):
    """Dropout whose mask depends only on the context's key and the element's place."""

    def __init__(self, layer: nn.Dropout, context: Context, salt: int) -> None:
        super().__init__()
        self.p, self._context, self._salt = layer.p, context, salt
        self.inplace = layer.inplace
        # Dropout1d/2d/3d drop whole channels of an example.
        self._whole_channels = not isinstance(layer, nn.Dropout)
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share p of the elements (or channels) and scale up the rest."""
        if not self.training or self.p == 0:
            return x
        drawn = x.shape[:2] if self._whole_channels else x.shape
        place = torch.arange(drawn.numel(), device=x.device).view(drawn)
        key = self._context.key
        assert key is not None
        draw = counter_hash(key, self._salt, place).view(*drawn, *[1] * (x.dim() - len(drawn)))
        keep = draw >= int(self.p * 2**32)
        return x * keep / (1 - self.p)


#: Whose parameters and buffers are the part ``normalisation`` of a model.
NORMALISATIONS = (
    PaddedBatchNorm,
    *BATCH_NORMS,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
