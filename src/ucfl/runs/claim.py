"""May this run be trained in that folder, and where does it go on?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ucfl import distributed
from ucfl.errors import UcflError
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.files import remove_unfinished
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, Configuration, read_configuration
from ucfl.users.scenario import OF_USERS

CPU = torch.device("cpu")


def claim(
    folder: Path,
    configuration: Configuration,
    *,
    resume: bool,
    fresh: bool,
    on_note: Callable[[str], None] | None,
) -> Checkpoint | None:
    """Make sure that the folder may be written; the checkpoint to go on from, if any.

    The folder is locked by this process.
    """
    bring_back(folder)
    if folder.exists() and not folder.is_dir():
        raise UcflError(f"{folder} is a file; give --out a folder.")
    if folder.exists():
        remove_unfinished(folder)
    if (folder / CONFIGURATION).exists() and not fresh:
        point = _stored(folder, configuration, resume=resume, on_note=on_note)
        if point is not None:
            return point
    elif folder.exists() and any(folder.iterdir()) and not is_run(folder):
        raise UcflError(f"{folder} is not empty and holds no run; give --out another folder.")
    _make_way(folder)
    return None


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, readable or not."""
    return any((folder / name).exists() for name in (CONFIGURATION, CHECKPOINT))


def common_point(file: Path, device: torch.device) -> Checkpoint:
    """The newest checkpoint that every process has: its ``file``, or the one before that."""
    found = {}
    for place in (before(file), file):
        try:
            point = Checkpoint.read(place, CPU)
        except UcflError:
            continue
        found[point.round] = point
    rounds = torch.tensor([(*sorted(found, reverse=True), -1, -1)[:2]], device=device)
    each = [{*row} - {-1} for row in distributed.gathered(rounds).tolist()]
    if not (common := set.intersection(*each)):
        raise UcflError(
            f"the processes' checkpoints in {file.parent} have no round in common; start the run "
            "again with --fresh."
        )
    return found[max(common)]


def replaced(folder: Path) -> Path:
    """Where a run is kept that ``--fresh`` replaces, until the new one has stored something."""
    return folder.with_name(f".{folder.name}.replaced")


def bring_back(folder: Path) -> None:
    """The run that a process replaced which ended before it had stored anything."""
    if replaced(folder).exists() and not (folder / CHECKPOINT).exists():
        shutil.rmtree(folder, ignore_errors=True)
        replaced(folder).rename(folder)


def _stored(
    folder: Path,
    configuration: Configuration,
    *,
    resume: bool,
    on_note: Callable[[str], None] | None,
) -> Checkpoint | None:
    """The folder's checkpoint, if it is the one to go on from."""
    about, rounds = read_configuration(folder), configuration.scenario.rounds
    differs = differences(about, configuration)
    if resume and about.get("processes", 1) != distributed.ranks():
        raise UcflError(
            f"{folder} was trained by {about.get('processes', 1)} processes; go on with as many, "
            "or start it again with --fresh."
        )
    if resume and differs:
        raise UcflError(
            f"{folder} holds a run of another configuration (different {', '.join(differs)}); "
            "give --out another folder, or replace it with --fresh."
        )
    stored = (folder / CHECKPOINT).exists() or before(folder / CHECKPOINT).exists()
    point = Checkpoint.load(folder / CHECKPOINT, CPU) if stored and not differs else None
    if resume:
        if point is not None and point.round > rounds:
            raise UcflError(
                f"{folder} has {point.round} rounds already, more than the {rounds} asked for."
            )
        return point
    if point is not None and point.round == rounds:
        if on_note:
            on_note(f"{folder} holds this run already; --fresh trains it again.")
        return point
    what = "another run"
    if not differs:
        what = f"this run with {point.round if point else 0} of {rounds} rounds"
    raise UcflError(
        f"{folder} holds {what}; continue it with --resume, replace it with --fresh, or give --out "
        "another folder."
    )


def _make_way(folder: Path) -> None:
    """An empty folder; what was there is kept until the new run has stored something."""
    try:
        if folder.exists():
            shutil.rmtree(replaced(folder), ignore_errors=True)
            folder.rename(replaced(folder))
        folder.mkdir(parents=True)
        probe = folder / ".probe.unfinished"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UcflError(
            f"{folder} cannot be written ({error.strerror}); give --out another folder."
        ) from error


def differences(about: dict[str, Any], configuration: Configuration) -> list[str]:
    """Names of what differs between a stored run and a configuration."""
    old, new = about["configuration"], configuration.identity()
    words = [key for key in new if key != "scenario" and old.get(key) != new[key]]
    words += [key for key in old if key not in new]
    mine, theirs = new["scenario"], old["scenario"]
    same_users = old["data"] == new["data"]  # wherever they come from
    words += [
        key
        for key in {**mine, **theirs}
        if mine.get(key) != theirs.get(key) and not (same_users and key in OF_USERS)
    ]
    if not words and not configuration.behaves_like(about.get("probe")):
        words.append("forward() of the model")
    return words
