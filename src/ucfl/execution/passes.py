"""Passes over a traced step before it is run: they take out what does nothing or is done twice.

Each returns how many places it changed: a pass that changes nothing in the model it was written for
has silently switched itself off (``tests/execution/test_private.py``). What they gain:
``benchmarks/engine.py``, LeNet-5 for :func:`simplify` (CPU) and :func:`fuse_bias_gradients`, the
model ``mlp`` (traced) for :func:`fuse_products`, the model ``vgg`` for the others.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

import ucfl.execution.marks  # noqa: F401 (its operations are known by their names)
from ucfl.execution.private import OpOverload, schema

#: What only arranges its input anew.
LAYOUTS = {
    getattr(torch.ops.aten, name).default
    for name in ("view", "_unsafe_view", "permute", "unsqueeze", "clone", "as_strided")
}


def simplify(graph: torch.fx.Graph) -> int:
    """Drop what does nothing: views of the same shape, transposes of transposes, unread writes.

    Autograd leaves dozens of them in a step, and each costs a call (in a CUDA graph, nothing).
    """
    view, t = torch.ops.aten.view.default, torch.ops.aten.t.default
    before = len(graph.nodes)
    for node in graph.nodes:
        if node.target is view and node.args[0].meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(node.args[0])
        elif node.target is t and node.args[0].target is t:
            node.replace_all_uses_with(node.args[0].args[0])
    graph.eliminate_dead_code()
    for node in reversed(graph.nodes):
        if _is_unread_write(node):
            graph.erase_node(node)
    return before - len(graph.nodes)


def _is_unread_write(node: torch.fx.Node) -> bool:
    """Whether the node only writes to what nobody else looks at."""
    if node.users or not isinstance(node.target, OpOverload):
        return False
    declared = schema(node.target)
    written = [a.alias_info is not None and a.alias_info.is_write for a in declared.arguments]
    if written != [True, *(False for _ in written[1:])]:
        return False
    place = node.args[0]
    if not isinstance(place, torch.fx.Node) or place.op != "call_function":
        return False
    own = _owner(place) is place and len(place.users) == 1
    return own and torch.Tag.nondeterministic_seeded not in node.target.tags


def share_layouts(graph: torch.fx.Graph) -> int:
    """One view or copy of a tensor for all that ask for the same.

    The backward pass asks for layouts that the forward pass has made already: images, filters. A
    copy is shared only if nobody writes to it or to its source (running statistics, for instance).
    """
    shared = 0
    written = _written(graph)
    first: dict[Any, torch.fx.Node] = {}
    for node in graph.nodes:
        copied = node.target is torch.ops.aten.clone.default
        if node.target in LAYOUTS and not (copied and {node, _owner(node.args[0])} & written):
            same = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
            if same is not node:
                node.replace_all_uses_with(same)
                shared += 1
    return shared


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
        if isinstance(node.target, OpOverload) and schema(node.target).is_mutable
    }


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one looks at."""
    while node.target is operator.getitem or (
        isinstance(node.target, OpOverload)
        and any(out.alias_info is not None for out in schema(node.target).returns)
    ):
        node = node.args[0]  # type: ignore[assignment]  # a view is of its first argument
    return node


def drop_zero_sums(graph: torch.fx.Graph) -> int:
    """Zeros for sums that are known to be zero (:func:`~ucfl.execution.marks.centred`)."""
    known, total = torch.ops.ucfl.centred.default, torch.ops.aten.sum.dim_IntList
    dropped = 0
    for node in [node for node in graph.nodes if node.target is known]:
        gradient, stacked = node.args
        per_channel = {1, *range(3, gradient.meta["val"].dim())}
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
                dropped += 1
        node.replace_all_uses_with(gradient)
    return dropped


def materialise(graph: torch.fx.Graph) -> int:
    """Have the compiler store what is marked as such (:func:`~ucfl.execution.marks.kept`).

    It stores what ``as_strided`` is applied to; the strides must be those that it has.
    """
    marked = [node for node in graph.nodes if node.target is torch.ops.ucfl.kept.default]
    for node in marked:
        source, value = node.args[0], node.meta["val"]
        with graph.inserting_before(node):
            if source.meta["val"].stride() != value.stride():  # a part of something, for instance
                source = graph.call_function(torch.ops.aten.clone.default, (source,))
                source.meta = node.meta
            stored = graph.call_function(
                torch.ops.aten.as_strided.default, (source, [*value.shape], [*value.stride()])
            )
        stored.meta = node.meta
        node.replace_all_uses_with(stored)
    return len(marked)


def fuse_statistics(graph: torch.fx.Graph) -> int:
    """Have convolutions compute the variance and mean of their outputs, where those come next.

    Batch normalisation asks for every channel's variance and mean, and would read all images again.
    A bias between them only moves the mean, and not the difference from it. Where anything is
    written to in between, nothing is changed.
    """
    fused = 0
    view, add = torch.ops.aten.view.default, torch.ops.aten.add.Tensor
    written = _written(graph)
    for node in [node for node in graph.nodes if node.target is torch.ops.aten.var_mean.correction]:
        given: Any = node.args[0]
        shifted = given.target is add and not given.kwargs
        images, bias = given.args if shifted else (given, None)
        source = _convolution_of(images)
        if source is None or {*node.args[1]} != {1, 3, 4} or node.kwargs != {"correction": 0}:
            continue
        users, _, channels, *_ = _shape(images)
        per_channel = users, 1, channels, 1, 1
        if shifted and _shape(bias) != per_channel:
            continue
        if written & {_owner(it) for it in (given, images, bias) if it is not None}:
            continue
        fused += 1
        name = str(source.target.overloadpacket).removeprefix("ucfl.") + "_measured"
        with graph.inserting_before(source):
            both = graph.call_function(getattr(torch.ops.ucfl, name).default, source.args)
            y, *found = (graph.call_function(operator.getitem, (both, i)) for i in range(3))
            var, mean = (graph.call_function(view, (it, [users, channels])) for it in found)
        source.replace_all_uses_with(y)
        moved = mean
        if shifted:
            with graph.inserting_before(node):
                move = graph.call_function(view, (bias, [users, channels]))
                moved = graph.call_function(add, (mean, move))
        for user in [*node.users]:
            user.replace_all_uses_with((var, moved)[user.args[1]])
        for user in [*given.users] if shifted else []:
            if _is_less(user, moved, per_channel):
                with graph.inserting_before(user):
                    along = graph.call_function(view, (mean, [*per_channel]))
                user.args = (images, along)
    return fused


def fuse_bias_gradients(graph: torch.fx.Graph) -> int:
    """Have weight gradients sum the output gradients that they read, where a bias asks for it.

    The sum would read all of them again; the compiler would even compute them again for it.
    """
    fused = 0
    total = torch.ops.aten.sum.dim_IntList
    written = _written(graph)
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in [node for node in order if str(node.target) == "ucfl.weight_gradient.default"]:
        gradients = _gradients_of(node.args[0], written)
        for one in [] if gradients is None else [*gradients.users]:
            asked = one.target is total and one.args[1:] == ([1, 3, 4],) and not one.kwargs
            if asked and one.users and all(order[user] > order[node] for user in one.users):
                with graph.inserting_before(node):
                    both = graph.call_function(
                        torch.ops.ucfl.weight_gradient_summed.default, node.args
                    )
                    parts, sums = (
                        graph.call_function(operator.getitem, (both, i)) for i in range(2)
                    )
                    whole = graph.call_function(total, (sums, [0]))
                    bias = graph.call_function(torch.ops.aten.view.default, (whole, [*_shape(one)]))
                node.replace_all_uses_with(parts)
                one.replace_all_uses_with(bias)
                fused += 1
                break
    return fused


def _gradients_of(read: Any, written: set[torch.fx.Node]) -> Any:
    """The [users, examples, channels, height, width] that a backward pass reads, if any."""
    path = [read]
    while path[-1].target in LAYOUTS - {torch.ops.aten.permute.default}:
        path.append(path[-1].args[0])
    turned = path[-1]
    if turned.target is not torch.ops.aten.permute.default or turned.args[1] != [1, 0, 2, 3, 4]:
        return None
    n, users, *image = _shape(turned)
    flat = (n, users * image[0], *image[1:])
    for node in path:
        moved = node.target is torch.ops.aten.as_strided.default and (
            len(node.args) > 3 or _strides(node) != _strides(node.args[0])
        )
        if moved or _shape(node) not in (flat, _shape(turned)):
            return None
    gradients = turned.args[0]
    known = _shape(read) == flat and gradients.meta["val"].dtype == torch.float32
    return gradients if known and not written & {_owner(it) for it in (*path, gradients)} else None


def fuse_products(graph: torch.fx.Graph) -> int:
    """a ± s · b, with a number s, in one pass: an optimiser's step is little else.

    Its rates are tensors, so that they may change; a product with one would be stored and read
    again. PyTorch's compiler finds these by itself.
    """
    fused = 0
    signs = {torch.ops.aten.add.Tensor: 1, torch.ops.aten.sub.Tensor: -1}
    written = _written(graph)
    for node in [node for node in graph.nodes if node.target in signs and not node.kwargs]:
        for other, product in ((0, 1), (1, 0)) if signs[node.target] == 1 else ((0, 1),):
            added, scaled = node.args[other], node.args[product]
            if _is_scaled(scaled) and _same_kind(added, scaled):
                if written & {_owner(it) for it in (*scaled.args, added, scaled)}:
                    continue
                with graph.inserting_before(node):
                    both = graph.call_function(
                        torch.ops.aten.addcmul.default,
                        (added, *scaled.args),
                        {"value": signs[node.target]},
                    )
                both.meta = node.meta
                node.replace_all_uses_with(both)
                fused += 1
                break
    return fused


def _is_scaled(node: Any) -> bool:
    """Whether the node is a tensor times a number, both tensors, which nobody else reads."""
    product = isinstance(node, torch.fx.Node) and node.target is torch.ops.aten.mul.Tensor
    if not product or len(node.users) != 1:
        return False
    factors = [it for it in node.args if isinstance(it, torch.fx.Node) and "val" in it.meta]
    return (
        len(factors) == 2
        and min(it.meta["val"].dim() for it in factors) == 0
        and len({it.meta["val"].dtype for it in (*factors, node)}) == 1
    )


def _same_kind(one: Any, other: torch.fx.Node) -> bool:
    """Whether a value is a tensor of the same shape and type as another."""
    if not (isinstance(one, torch.fx.Node) and "val" in one.meta):
        return False
    mine, theirs = one.meta["val"], other.meta["val"]
    return bool(mine.shape == theirs.shape and mine.dtype == theirs.dtype)


def _is_less(node: torch.fx.Node, mean: torch.fx.Node, shape: tuple[int, ...]) -> bool:
    """Whether the node is something without this mean, taken in this shape."""
    if node.target is not torch.ops.aten.sub.Tensor or node.kwargs:
        return False
    taken: Any = node.args[1]
    seen = isinstance(taken, torch.fx.Node) and taken.target is torch.ops.aten.view.default
    return seen and taken.args[0] is mean and _shape(taken) == shape


def _convolution_of(images: Any) -> Any:
    """Which of our convolutions made these [users, examples, channels, height, width], if any."""
    turned = isinstance(images, torch.fx.Node) and images.target is torch.ops.aten.permute.default
    if not turned or images.args[1] != [1, 0, 2, 3, 4]:
        return None
    view = images.args[0]
    if view.target is not torch.ops.aten.view.default:
        return None
    source, (n, users, channels, *size) = view.args[0], _shape(view)
    known = str(source.target) in ("ucfl.few_channels.default", "ucfl.many_channels.default")
    beside = known and _shape(source) == (n, users * channels, *size)
    return source if beside and source.meta["val"].dtype == torch.float32 else None


def _shape(value: Any) -> tuple[int, ...]:
    """Of a traced tensor; of none where it is not known."""
    known = isinstance(value, torch.fx.Node) and "val" in value.meta
    return tuple(value.meta["val"].shape) if known else ()


def _strides(node: Any) -> tuple[int, ...]:
    strides: tuple[int, ...] = node.meta["val"].stride()
    return strides


#: What a CPU's graph goes through, and a GPU's, in this order.
FOR_CPU = (simplify,)
FOR_GPU = (
    drop_zero_sums,
    materialise,
    share_layouts,
    fuse_statistics,
    fuse_bias_gradients,
    fuse_products,
)
