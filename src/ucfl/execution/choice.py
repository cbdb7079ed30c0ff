"""Which executor a federation gets: chosen once, from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

import torch

from ucfl.execution.cuda import Recorded
from ucfl.execution.executor import Executor
from ucfl.execution.memory import keep_freed_memory
from ucfl.execution.plain import Plain
from ucfl.execution.precision import Precision, check_precision
from ucfl.execution.stacked import Stacked

#: Steps of all users in a round from which on they are traced; fewer do not pay for the tracing.
WORTH_TRACING = 16
#: Batches up to which a CPU stacks users, and how many (measured: benchmarks/chunks.py).
SMALL_BATCH, STACKED = 16, 10
#: Of a GPU's free memory, what stacked users may take.
SHARE_OF_MEMORY = 0.5


class Options(TypedDict, total=False):
    """How to compute, where a person has a wish: rounding, and nothing else, depends on it.

    ``plain``: one user after another, to debug. ``chunk``: how many users are stacked at a time
    (None: as many as suit the device). ``compiled``: PyTorch's compiler fuses the steps, which pays
    for long runs. ``precision``: of the model's products, see :data:`Precision`.
    """

    plain: bool
    chunk: int | None
    compiled: bool
    precision: Precision


def for_mixture(options: Options) -> Options:
    """The same wishes for a model that a method makes of several: without the compiler.

    On a GPU, FedMoE's compiled mixture learned no more than its gates can; the compiler is
    suspected (``docs/algorithms/fedmoe.md``).
    """
    return {**options, "compiled": False}


def choose(
    *,
    users: int,
    steps: int,
    batch: int,
    bytes_per_user: Callable[[], float],
    device: torch.device,
    **options: Unpack[Options],
) -> Executor:
    """An executor for so many users that take so many steps in a round, in all.

    ``bytes_per_user`` measures what stacking one more user takes; only a GPU is asked.
    """
    chunk, precision = options.get("chunk"), options.get("precision", "default")
    check_precision(precision)
    if device.type == "cpu":
        keep_freed_memory()
    if options.get("plain", False):
        return Plain(device, precision)
    alone = "chunk = 1"
    if chunk is None:
        alone = _why_alone(users, batch, device)
        chunk = _default_chunk(users, batch, bytes_per_user, device)
    traced = device.type in ("cpu", "cuda") and steps >= WORTH_TRACING
    if chunk == 1 and not traced:
        return Plain(device, precision, f"{alone}, fewer than {WORTH_TRACING} steps a round")
    kind = Recorded if device.type == "cuda" else Stacked
    return kind(device, chunk, traced, options.get("compiled", False), precision)


def _why_alone(users: int, batch: int, device: torch.device) -> str:
    """Why nobody is stacked, where :func:`_default_chunk` says 1."""
    if users == 1:
        return "there is one"
    return "memory for one" if device.type == "cuda" else f"batches above {SMALL_BATCH}"


def _default_chunk(
    users: int, batch: int, bytes_per_user: Callable[[], float], device: torch.device
) -> int:
    """All users that fit on a GPU; on a CPU, what its cache favours.

    There, stacking users shares the cost of starting each operation, which is most of the time
    when batches are small; too many users at once leave the cache, or a core without work.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(1, min(users, int(SHARE_OF_MEMORY * free / bytes_per_user())))
    if batch > SMALL_BATCH:
        return 1
    share = -(-users // torch.get_num_threads())
    return min(users, max(2, min(STACKED, share)))  # never one by one: the bits would differ
