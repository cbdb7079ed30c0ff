"""Keeping a run's rounds: checkpoint, history, and what to do where they cannot be written."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path

import torch

from ucfl import distributed
from ucfl.errors import UcflError, UcflWarning
from ucfl.runs.checkpoint import Checkpoint, checkpoint_name
from ucfl.runs.claim import replaced
from ucfl.runs.files import NotWritten
from ucfl.runs.folder import HISTORY, Run
from ucfl.runs.history import write_history


def checkpoint_file(folder: Path) -> Path:
    """This process's part of the checkpoint."""
    return folder / checkpoint_name(distributed.rank(), distributed.ranks())


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
            write_history(folder / HISTORY, point)
            shutil.rmtree(replaced(folder), ignore_errors=True)  # the new run has something


def complete(folder: Path, point: Checkpoint) -> None:
    """Write the history of a finished run, unless it is there."""
    try:
        rounds = int(Run.open(folder).history["round"].max())
    except UcflError:
        rounds = -1
    if rounds != point.round:
        write_history(folder / HISTORY, point)


def keep_or_go_on(folder: Path, point: Checkpoint, device: torch.device) -> bool:
    """Training does not end because a disk is full; the next checkpoint may be written."""
    try:
        keep(folder, point, device)
        return True
    except NotWritten as error:
        warnings.warn(
            f"{error.what}; training goes on, and the checkpoint is tried again: until then, "
            f"rounds up to {point.round} would be lost by a stop.",
            UcflWarning,
            stacklevel=2,
        )
        return False


def keep_anywhere(folder: Path, point: Checkpoint, device: torch.device) -> None:
    """The last checkpoint of this process: where its folder cannot take it, another may."""
    try:
        keep(folder, point, device)
    except NotWritten as error:
        file = place = checkpoint_file(folder)
        if not _holds(file, point.round):
            try:
                aside = tempfile.mkdtemp(prefix=f"{folder.name}-round{point.round}-")
                place = Path(aside) / file.name
                point.save(place)
            except (OSError, NotWritten):
                raise NotWritten(
                    f"{error.what}; no other folder could take its {point.round} rounds either: "
                    "free some space, and --resume goes on from what was stored before."
                ) from error
        moved = "" if place == file else f"move that file to {file}, "
        raise NotWritten(
            f"{error.what}; the run's {point.round} rounds are in {place}: free some space, "
            f"{moved}and go on with --resume."
        ) from error


def _holds(file: Path, t: int) -> bool:
    """Whether a checkpoint is that of round t."""
    try:
        return Checkpoint.read(file, torch.device("cpu")).round == t
    except UcflError:
        return False
