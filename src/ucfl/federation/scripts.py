"""A traced graph run without Python, bit by bit as with it.

Threads that share out a federation's chunks on a CPU hold Python's lock between operations, and
wait for each other there: that cost a quarter of a round. TorchScript's interpreter does not need
it. PyTorch calls TorchScript deprecated, but has nothing else that runs operations one after
another without Python; where it will be gone, only that quarter is lost.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def without_python(graph: torch.fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """The graph, run by TorchScript's interpreter; itself where that does not know an operation.

    A unit of its own is freed with the graph, which a scripted module would not be.
    """
    try:
        unit = torch.jit.CompilationUnit(_script(graph.graph))
    except Exception:  # there is nothing for anybody to do
        return graph

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        # Optimised, it would round in other places.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            result: tuple[Tensor, ...] = unit.run(*given)
            return result

    return run


def _script(graph: torch.fx.Graph) -> str:
    """The source of a graph of plain operations, in TorchScript.

    Their overloads have no names there: they are chosen by their arguments' types.
    """
    copied = torch.ops.aten._to_copy.default
    given, lines = [], []
    for node in graph.nodes:
        values = ", ".join(
            [*map(_literal, node.args), *(f"{k}={_literal(v)}" for k, v in node.kwargs.items())]
        )
        if node.op == "placeholder":
            given.append(node.name)
        elif node.op == "output":
            lines.append(f"return {values}")
        elif node.target is operator.getitem:
            lines.append(f"{node.name} = {node.args[0]}[{node.args[1]}]")
        elif node.target is copied and not isinstance(node.args[0], torch.fx.Node):
            lines.append(f"{node.name} = torch.tensor({values})")  # of a number
        elif isinstance(node.target, torch._ops.OpOverload):
            lines.append(f"{node.name} = torch.ops.{node.target.overloadpacket}({values})")
        else:
            raise TypeError(f"{node.format_node()} is no plain operation")
    return "\n    ".join([f"def run({', '.join(given)}):", *lines]) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        items = ", ".join(map(_literal, value))
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return f"torch.device('{value}')" if isinstance(value, torch.device) else repr(value)
