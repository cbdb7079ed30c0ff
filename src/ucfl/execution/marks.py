"""Operations that compute nothing: they tell a traced graph something about a tensor.

:mod:`~ucfl.execution.passes` reads them and takes them out. Only graphs for a GPU have them; where
nothing is traced they are copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

#: The kind of device whose graphs are made for a GPU. (Tests say "cpu", and run them there.)
GPU = "cuda"


def for_gpu(x: Tensor) -> bool:
    """Whether graphs of x are made for a GPU."""
    return x.device.type == GPU


@custom_op("ucfl::kept", mutates_args=())
def kept(x: Tensor) -> Tensor:
    """x, to be computed once and stored as it lies.

    PyTorch's compiler would compute it anew for every element of what it is used for, such as a
    channel's scale for all of its pixels.
    """
    return x.clone()


@custom_op("ucfl::centred", mutates_args=())
def centred(x: Tensor, stacked: bool) -> Tensor:
    """x [examples, channels, ...], whose sum over all but the channels is zero.

    It need not be summed then: that would be the gradient of a bias that the normalisation takes
    away again. ``stacked`` says that users come first.
    """
    return x.clone()


@kept.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@centred.register_fake
def _(x: Tensor, stacked: bool) -> Tensor:
    return torch.empty_like(x)


@kept.register_vmap
def _(info: Any, dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
    return kept(x), dims[0]


@centred.register_vmap
def _(info: Any, dims: tuple[int | None, ...], x: Tensor, stacked: bool) -> tuple[Tensor, int]:
    assert dims[0] is not None  # only x can be stacked
    return centred(x.movedim(dims[0], 0), True), 0
