"""How precisely a GPU multiplies: a choice between bits and time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, get_args

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ucfl.errors import check_name

#: ``default`` is PyTorch's own setting: TF32 for convolutions on a GPU, float32 for the rest.
#: ``bfloat16`` computes the model in it, but keeps parameters, sums and the loss in float32.
Precision = Literal["default", "float32", "tf32", "bfloat16"]


def check_precision(name: str) -> None:
    """Raise unless it is one of :data:`Precision`."""
    check_name("precision", name, get_args(Precision))


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Everything inside is computed, or traced, with this precision.

    And without fused attention kernels that ``vmap`` has no rule for: those for inference, and on
    a CPU all of them.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    attention = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    try:
        with _tf32(precision, device), _autocast(precision, device), attention:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextmanager
def _tf32(precision: Precision, device: torch.device) -> Iterator[None]:
    if precision == "default" or device.type == "cpu":  # which has no TF32
        yield
        return
    cudnn, cublas = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cublas.allow_tf32
    try:
        cudnn.allow_tf32 = cublas.allow_tf32 = precision != "float32"
        yield
    finally:
        cudnn.allow_tf32, cublas.allow_tf32 = before
