"""Several processes for one run, started by ``torchrun``: each trains its share of the users."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import torch
import torch.distributed as dist

from ucfl.collaboration import shards
from ucfl.errors import UcflError
from ucfl.runs.folder import CHECKPOINT
from ucfl.users import Users

if dist.is_available():
    # Its functions take the group that is there when it is imported as a default, and so keep it
    # for ever: better now, while there is none, than by PyTorch's tracer (see `leave`).
    import torch.distributed.nn


def join() -> None:
    """Meet the other processes, where ``torchrun`` started any."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(leave, failed=True)  # for who trains in a script of their own


def leave(*, failed: bool = False) -> None:
    """Part from the other processes: after all have come so far, or at once where this one failed.

    A process that ends while another is still in their last exchange may abort. So does one whose
    group lives on until Python ends: a thread of Gloo's that drops its last tensors then asks for a
    Python that is no longer there. Destroying the group waits for its threads, if nobody else
    holds it.
    """
    if dist.is_available() and dist.is_initialized():
        if not failed:
            dist.barrier()
        dist.destroy_process_group()


def is_first() -> bool:
    """Whether this process speaks and writes for all."""
    return shards.rank() == 0


def my_users(users: Users) -> Users:
    """This process's share."""
    if shards.ranks() == 1:
        return users
    if len(users) < shards.ranks():
        raise UcflError(
            f"{len(users)} users cannot be shared out to {shards.ranks()} processes: start fewer."
        )
    return users.select(list(shards.share(len(users))))


def wait() -> None:
    """Until all processes are here."""
    if shards.ranks() > 1:
        dist.barrier()


def checkpoint_file(folder: Path) -> Path:
    """This process's part of the checkpoint."""
    if is_first():
        return folder / CHECKPOINT
    return folder / f"checkpoint-{shards.rank()}of{shards.ranks()}.safetensors"
