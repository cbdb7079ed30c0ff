"""Every private, experimental or deprecated interface of PyTorch that ucfl uses; nothing else does.

| interface | kind | what for | without it |
|---|---|---|---|
| ``make_fx`` (``torch.fx.experimental``) | experimental | traces a step | executors cannot trace |
| ``OpOverload``, its schema (``torch._ops``) | private | what an operation writes to | no passes |
| ``Tensor._version`` | private | whether a tensor was written to since | copies in each replay |
| ``torch.jit.CompilationUnit`` | deprecated | a CPU's graphs without the GIL | slower, same bits |
| options of ``torch.compile`` | undocumented | when results are stored | slower when compiled |

Tested with PyTorch 2.11 and 2.13 (:data:`TESTED`); ``pyproject.toml`` admits no other minor version
than those between. ``tests/execution/test_private.py`` fails when one of them no longer works, when
a graph pass matches nothing in the model it was written for, or when another file uses one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload as OpOverload

#: Minor versions of PyTorch that the tests have run with.
TESTED = ("2.11", "2.13")

#: When PyTorch's compiler stores an intermediate result rather than compute it again where it is
#: used: later than by its own defaults. All users' activations are large and their arithmetic is
#: little, so that storing a normalised image costs more than normalising it twice.
FUSION = {
    "realize_reads_threshold": 8,
    "realize_acc_reads_threshold": 12,
    "realize_opcount_threshold": 50,
}


def make_graph(
    function: Callable[..., Any], replacements: dict[Any, Callable[..., Any]], *arguments: Tensor
) -> torch.fx.GraphModule:
    """What the function does to tensors like these, without computing anything."""
    # Imported late: it takes a second, which small federations do not need.
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(
        function,
        decomposition_table=replacements,
        tracing_mode="fake",
        _allow_non_fake_inputs=True,
    )(*arguments)


def schema(operation: OpOverload) -> Any:
    """The declaration of an operation: its name, and what it reads, writes and returns."""
    return operation._schema


def version(tensor: Tensor) -> int:
    """How often a tensor was written to."""
    return tensor._version


def script(source: str) -> Any:
    """TorchScript's function ``run`` of a source; freed with it, which a module would not be."""
    return torch.jit.CompilationUnit(source).run


def unoptimised() -> Any:
    """Inside, TorchScript runs operations as they are; optimised, it would round elsewhere."""
    return torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
