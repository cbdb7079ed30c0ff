"""Keeping a run's rounds: checkpoint, history, and what to do where they cannot be written."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path

import torch

from ucfl import distributed
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs.checkpoint import Checkpoint
from ucfl.runs.claim import replaced
from ucfl.runs.files import NotWritten
from ucfl.runs.folder import CHECKPOINT, Run, write_history


def checkpoint_file(folder: Path) -> Path:
    """This process's part of the checkpoint."""
    rank, ranks = distributed.rank(), distributed.ranks()
    return folder / (CHECKPOINT if rank == 0 else f"checkpoint-{rank}of{ranks}.safetensors")


def keep(folder: Path, point: Checkpoint, device: torch.device) -> None:
    """Store a round, or :class:`NotWritten` in all processes.

    The first process writes last: a round that it has stored, all have. The history comes after the
    checkpoint, from which it can be made again.
    """
    first = distributed.is_first()
    with distributed.as_one(device, NotWritten):
        if not first:
            point.save(checkpoint_file(folder))
    with distributed.as_one(device, NotWritten):
        if first:
            point.save(checkpoint_file(folder))
            write_history(folder, point)
            shutil.rmtree(replaced(folder), ignore_errors=True)  # the new run has something


def complete(folder: Path, point: Checkpoint) -> None:
    """Write the history of a finished run, unless it is there."""
    try:
        rounds = int(Run.open(folder).history["round"].max())
    except UcflError:
        rounds = -1
    if rounds != point.round:
        write_history(folder, point)


def keep_or_go_on(folder: Path, point: Checkpoint, device: torch.device) -> bool:
    """Training does not end because a disk is full; the next checkpoint may be written."""
    try:
        keep(folder, point, device)
        return True
    except NotWritten as error:
        warnings.warn(
            f"{str(error).rstrip('.')}; training goes on, and the checkpoint is tried again: "
            f"until then, rounds up to {point.round} would be lost by a stop.",
            UcflWarning,
            stacklevel=2,
        )
        return False


def keep_anywhere(folder: Path, point: Checkpoint, device: torch.device) -> None:
    """The last checkpoint of this process: where its folder cannot take it, another may."""
    try:
        keep(folder, point, device)
    except NotWritten as error:
        file = checkpoint_file(folder)
        aside = Path(tempfile.gettempdir()) / f"{folder.name}-round{point.round}"
        try:
            aside.mkdir(exist_ok=True)
            point.save(aside / file.name)
        except (OSError, NotWritten):
            raise error from None
        raise NotWritten(
            f"{str(error).rstrip('.')}; the run's {point.round} rounds are in "
            f"{aside / file.name}: free some space, move that file to {file}, and go on with "
            "--resume."
        ) from error
