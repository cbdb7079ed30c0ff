"""Several processes for one run (``torchrun``): each holds its own users' rows of everything.

All of our distributed code is here. Users meet in sums and in small gathered vectors, and only
:class:`Mixing` and the collaboration round ask for those, so algorithms are written as if there
were one process. In a single process all of this does nothing.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from ucfl.errors import UcflError

if dist.is_available():
    # Its functions take the process group that is there when it is imported as a default, and so
    # hold it for ever: better now, while there is none, than by PyTorch's tracer (see `leave`).
    import torch.distributed.nn


def started_together() -> bool:
    """Whether ``torchrun`` started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join() -> None:
    """Join the process group, where ``torchrun`` started several processes."""
    if not started_together() or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _others(), _ended_by_signals():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(leave, failed=True)  # for who trains in a script of their own


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end this process at once, where Python would handle them.

    Its handlers run in Python code only, and PyTorch's wait for a process that never comes is one
    call. Nothing is stored yet that an end at once could harm.
    """
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # no other thread may change them
        found = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def leave(*, failed: bool = False) -> None:
    """Destroy the process group: after a barrier, or at once where this process failed.

    A process that ends while another is still in their last collective may abort. So does one
    whose group lives on until Python ends: a thread of Gloo's that drops its last tensors then asks
    for a Python that is no longer there. Destroying the group waits for its threads, if nobody else
    holds it.
    """
    if dist.is_available() and dist.is_initialized():
        try:
            if not failed:
                barrier()
        finally:
            dist.destroy_process_group()


def barrier() -> None:
    """Wait until all processes are here."""
    if ranks() > 1:
        with _others():
            dist.barrier()


@contextmanager
def _others() -> Iterator[None]:
    """The other processes are there, or this one says that they are not."""
    try:
        yield
    except RuntimeError as error:
        raise UcflError(
            "another process of this run has ended; start all of them again, with --resume."
        ) from error


def decided(due: bool, stop: bool, device: torch.device) -> tuple[bool, bool]:
    """Whether a checkpoint is due, which the first process says, and whether any is to stop."""
    if ranks() == 1:
        return due, stop
    asked = torch.tensor([due and is_first(), stop], dtype=torch.int32, device=device)
    due, stop = (summed(asked) > 0).tolist()
    return due, stop


def is_first() -> bool:
    """Whether this process speaks and writes for all."""
    return rank() == 0


def ranks() -> int:
    """How many processes share the users."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process among them."""
    return dist.get_rank() if ranks() > 1 else 0


def summed(part: Tensor) -> Tensor:
    """The sum of every process's part."""
    if ranks() == 1:
        return part
    total = part.contiguous().clone()
    with _others():
        dist.all_reduce(total)
    return total


def gathered(rows: Tensor) -> Tensor:
    """The rows of all users, in order; every process gives its own users', as many as it has."""
    if ranks() == 1:
        return rows
    lengths = _lengths(len(rows), rows.device)
    padded = rows.new_zeros(max(lengths), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in lengths]
    with _others():
        dist.all_gather(parts, padded.contiguous())
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def mine(count: int, device: torch.device) -> slice:
    """Where this process's ``count`` users are among all."""
    before = _lengths(count, device)[: rank()] if ranks() > 1 else []
    return slice(sum(before), sum(before) + count)


def share(users: int) -> range:
    """The users of this process, of so many: equal parts, the first ones larger by one."""
    return shares(users, ranks())[rank()]


def shares(users: int, processes: int) -> list[range]:
    """The users of each of so many processes."""
    each, more = divmod(users, processes)
    starts = [number * each + min(number, more) for number in range(processes + 1)]
    return [range(*pair) for pair in itertools.pairwise(starts)]


def agreed(tensor: Tensor) -> Tensor:
    """The first process's value, where all computed the same up to rounding."""
    if ranks() > 1:
        tensor = tensor.contiguous().clone()
        with _others():
            dist.broadcast(tensor, 0)
    return tensor


def check_equal(values: Mapping[str, object], device: torch.device) -> None:
    """Raise the same error in every process unless all have the same values."""
    if ranks() == 1:
        return
    own = {name: hashlib.sha256(repr(v).encode()).hexdigest()[:16] for name, v in values.items()}
    every = [json.loads(text) for text in _texts(json.dumps(own), device)]
    names = {name: None for each in every for name in each}
    if apart := [name for name in names if len({each.get(name) for each in every}) > 1]:
        raise UcflError(
            f"the processes were started with different settings ({', '.join(apart)}); start all "
            "of them with the same command."
        )


@contextmanager
def as_one(device: torch.device, kind: type[UcflError] = UcflError) -> Iterator[None]:
    """An error of one process is one of all: nobody goes on, or waits for who has left."""
    error: UcflError | None = None
    try:
        yield
    except kind as raised:
        error = raised
    if ranks() > 1:
        texts = [text for text in _texts(str(error) if error else "", device) if text]
        error = error or (kind(texts[0]) if texts else None)
    if error is not None:
        raise error


def _texts(own: str, device: torch.device) -> list[str]:
    """Every process's text, in their order."""
    mine = torch.tensor(list(own.encode()), dtype=torch.uint8, device=device)
    ends = torch.tensor(_lengths(len(mine), device)).cumsum(0).tolist()
    every = bytes(gathered(mine).tolist())
    return [every[i:j].decode() for i, j in zip([0, *ends], ends, strict=False)]


def _lengths(count: int, device: torch.device) -> list[int]:
    own = torch.tensor([count], device=device)
    every = [torch.empty_like(own) for _ in range(ranks())]
    with _others():
        dist.all_gather(every, own)
    return [int(one) for one in every]
