"""What is taken out of a traced step before it is run: work that does nothing or is done twice."""

from __future__ import annotations

import operator
from typing import Any

import torch

import ucfl.federation.layers  # noqa: F401 (it has an operation that graphs know)

#: What only arranges its input anew.
LAYOUTS = {
    getattr(torch.ops.aten, name).default
    for name in ("view", "_unsafe_view", "permute", "unsqueeze", "clone", "as_strided")
}


def simplify(graph: torch.fx.Graph) -> None:
    """Drop what does nothing: views of the same shape, transposes of transposes.

    Autograd leaves dozens of them in a step, and each costs a call (in a CUDA graph, nothing).
    """
    view, t = torch.ops.aten.view.default, torch.ops.aten.t.default
    for node in graph.nodes:
        if node.target is view and node.args[0].meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(node.args[0])
        elif node.target is t and node.args[0].target is t:
            node.replace_all_uses_with(node.args[0].args[0])


def share(graph: torch.fx.Graph) -> None:
    """One arrangement of a tensor for all that ask for it.

    The way back asks for what the way there has laid out already: images, filters. A copy is shared
    only if nobody writes to it or to what it was made of (running statistics, for instance).
    """
    written = _written(graph)
    first: dict[Any, torch.fx.Node] = {}
    for node in graph.nodes:
        copied = node.target is torch.ops.aten.clone.default
        if node.target in LAYOUTS and not (copied and {node, _owner(node.args[0])} & written):
            same = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
            if same is not node:
                node.replace_all_uses_with(same)


def _written(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Whose memory some operation writes to, but for the new state at the graph's end."""
    *nodes, _ = graph.nodes
    while (
        nodes[-1].target is torch.ops.aten.copy_.default and nodes[-1].args[0].op == "placeholder"
    ):
        nodes.pop()
    return {
        _owner(node.args[0])
        for node in nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    }


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one looks at."""
    while node.target is operator.getitem or (
        isinstance(node.target, torch._ops.OpOverload)
        and any(out.alias_info is not None for out in node.target._schema.returns)
    ):
        node = node.args[0]  # type: ignore[assignment]  # a view is of its first argument
    return node


def drop_sums(graph: torch.fx.Graph) -> None:
    """Zeros for sums that are known to be zero (:func:`~ucfl.federation.layers.centred_slope`)."""
    known, total = torch.ops.ucfl.centred_slope.default, torch.ops.aten.sum.dim_IntList
    for node in [node for node in graph.nodes if node.target is known]:
        slope, stacked = node.args
        per_channel = {1, *range(3, slope.meta["val"].dim())}
        for user in [user for user in node.users if user.target is total and stacked]:
            if {*user.args[1]} == per_channel:
                value = user.meta["val"]
                with graph.inserting_before(user):
                    zeros = graph.call_function(
                        torch.ops.aten.full.default,
                        (value.shape, 0),
                        {"dtype": value.dtype, "device": value.device},
                    )
                user.replace_all_uses_with(zeros)
        node.replace_all_uses_with(slope)
