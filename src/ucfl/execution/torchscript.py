"""A traced graph run without Python, bit by bit as with it.

Threads that share out a federation's chunks on a CPU hold Python's lock between operations, and
wait for each other there. TorchScript's interpreter does not need it. PyTorch calls TorchScript
deprecated, but has nothing else that runs operations one after another without Python; where it
will be gone, only speed is lost (docs/speed.md says how much).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ucfl.execution.private import OpOverload, schema, script, unoptimised

#: Overloads that compute the same to the bit: a number becomes a tensor in both.
SAME = {
    (f"aten::{name}.Tensor", f"aten::{name}.Scalar")
    for name in ("add", "sub", "mul", "div", "add_", "sub_", "div_")
}


class _Unfaithful(Exception):  # noqa: N818 (nobody sees it)
    """A graph that TorchScript would not run as it is."""


def without_gil(graph: torch.fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """The graph, run by TorchScript's interpreter; itself where that would run something else."""
    try:
        scripted = script(_source(graph.graph))
        _check(scripted.graph, graph.graph)
    except Exception:  # its compiler has its own; there is nothing for anybody to do
        return graph
    constants = [
        operator.attrgetter(node.target)(graph) for node in graph.graph.nodes if _is_constant(node)
    ]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        with unoptimised():
            result: tuple[Tensor, ...] = scripted(*given, *constants)
            return result

    return run


def _source(graph: torch.fx.Graph) -> str:
    """The graph in TorchScript, where overloads have no names: types of arguments choose them."""
    given, lines = [], []
    for node in graph.nodes:
        values = ", ".join(
            [*map(_literal, node.args), *(f"{k}={_literal(v)}" for k, v in node.kwargs.items())]
        )
        if node.op == "placeholder" or _is_constant(node):
            given.append(node.name)
        elif node.op == "output":
            lines.append(f"return {values}")
        elif node.target is operator.getitem:
            lines.append(f"{node.name} = {node.args[0]}[{node.args[1]}]")
        elif _is_number(node):
            lines.append(f"{node.name} = torch.tensor({values})")
        elif isinstance(node.target, OpOverload):
            lines.append(f"{node.name} = torch.ops.{node.target.overloadpacket}({values})")
        else:
            raise _Unfaithful(node.format_node())
    return "\n    ".join([f"def run({', '.join(given)}):", *lines]) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        items = ", ".join(map(_literal, value))
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return f"torch.device('{value}')" if isinstance(value, torch.device) else repr(value)


def _is_constant(node: torch.fx.Node) -> bool:
    return node.op == "get_attr"


def _is_number(node: torch.fx.Node) -> bool:
    """Whether the node makes a tensor of a number: vmap does so before it computes with one."""
    copied = node.target is torch.ops.aten._to_copy.default
    return copied and isinstance(node.args[0], int | float)


def _check(found: Any, graph: torch.fx.Graph) -> None:
    """Refuse a script that does not call exactly what the graph calls.

    TorchScript's compiler may choose another overload, write a call anew (a number divided by a
    tensor), or drop one whose result is not used, although it draws, writes or checks something.
    """
    ours = {"aten::__getitem__", "aten::tensor"}
    called = [
        node.schema().split("(")[0]
        for node in found.nodes()
        if not node.kind().startswith("prim::") and node.kind() not in ours
    ]
    asked = [
        node for node in graph.nodes if isinstance(node.target, OpOverload) and not _is_number(node)
    ]
    for node, name in zip(asked, called, strict=True):
        declared = schema(node.target)
        wanted = declared.name
        wanted += f".{declared.overload_name}" if declared.overload_name else ""
        if name not in (wanted, f"{wanted}_hacked_twin") and (wanted, name) not in SAME:
            raise _Unfaithful(f"{name} for {wanted}")
        # Numbers are whole or not in TorchScript, never bool; and it likes tensors to come first.
        for value, argument in zip(node.args, declared.arguments, strict=False):
            if isinstance(value, bool) and "bool" not in str(argument.type):
                raise _Unfaithful(f"{value} for {argument}")
        first = declared.arguments[0] if node.args else None
        if first and str(first.type) == "Tensor" and not isinstance(node.args[0], torch.fx.Node):
            raise _Unfaithful(f"{node.args[0]} for {first}")
