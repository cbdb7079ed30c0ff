"""How precisely a GPU multiplies: a choice between bits and time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, get_args

import torch

from ucfl.errors import check_name

#: ``default`` is PyTorch's own setting: TF32 for convolutions on a GPU, float32 for the rest.
#: ``bfloat16`` computes the model in it, but keeps parameters, sums and the loss in float32.
Precision = Literal["default", "float32", "tf32", "bfloat16"]


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Everything inside is computed, or traced, with this precision."""
    check_name("precision", precision, get_args(Precision))
    if precision == "default":
        yield
        return
    low = torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
    with low if precision == "bfloat16" else nullcontext():
        if device.type == "cpu":  # it has no TF32; and threads share these settings
            yield
            return
        cudnn, cublas = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.allow_tf32, cublas.allow_tf32
        try:
            cudnn.allow_tf32 = cublas.allow_tf32 = precision != "float32"
            yield
        finally:
            cudnn.allow_tf32, cublas.allow_tf32 = before
