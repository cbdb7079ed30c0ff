"""May this run be trained in that folder, and where does it go on?"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ucfl import distributed
from ucfl.errors import UcflError
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.configuration import Configuration
from ucfl.runs.files import UNFINISHED, remove_unfinished
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, read_configuration
from ucfl.runs.lock import held
from ucfl.users.effects import OF_USERS
from ucfl.words import counted

CPU = torch.device("cpu")


class Unusable(UcflError):  # noqa: N818 (what it is)
    """What the folder holds cannot be continued; only ``--fresh`` would go on there."""


def check_wish(*, resume: bool, fresh: bool) -> None:
    """Raise where a run is both to go on and to be replaced."""
    if resume and fresh:
        raise UcflError("--resume goes on with a run and --fresh replaces it: give one of them.")


@contextmanager
def claimed(
    folder: Path,
    configuration: Configuration,
    *,
    resume: bool,
    fresh: bool,
    on_note: Callable[[str], None] | None,
) -> Iterator[Checkpoint | None]:
    """The folder for this process to write; the checkpoint to go on from, if any.

    A run that ``--fresh`` replaces is there again if this ends before a round has been stored.
    """
    with held(folder, on_note):
        _bring_back(folder)
        try:
            yield _claim(folder, configuration, resume=resume, fresh=fresh, on_note=on_note)
        finally:
            _bring_back(folder)


def _claim(
    folder: Path,
    configuration: Configuration,
    *,
    resume: bool,
    fresh: bool,
    on_note: Callable[[str], None] | None,
) -> Checkpoint | None:
    if folder.is_dir():
        remove_unfinished(folder)
    check_place(folder)
    empty = not folder.exists() or not any(folder.iterdir())
    if not empty and not fresh:
        point = _stored(folder, configuration, resume=resume, on_note=on_note)
        if point is not None:
            return point
    try:
        if not empty and fresh:
            folder.resolve().rename(replaced(folder))  # itself, not a link that leads there
        folder.resolve().mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe.unfinished"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UcflError(
            f"{folder} cannot be written ({error.strerror}); give --out another folder."
        ) from error
    return None


def check_place(folder: Path) -> None:
    """Raise where a folder holds something else than a run, whole or begun."""
    if folder.exists() and not folder.is_dir():
        raise UcflError(f"{folder} is a file; give --out a folder.")
    there = [] if not folder.exists() else [place.name for place in folder.iterdir()]
    if not is_run(folder) and any(not name.endswith(UNFINISHED) for name in there):
        raise UcflError(f"{folder} is not empty and holds no run; give --out another folder.")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, readable or not."""
    return any((folder / name).exists() for name in (CONFIGURATION, CHECKPOINT))


def common_point(file: Path, device: torch.device) -> Checkpoint:
    """The newest checkpoint that every process has: its ``file``, or the one before that.

    It is then the file itself, and the next one is written beside it: a newer one that others lack
    would take its place as the one before.
    """
    found, newest = {}, -1
    for place in (before(file), file):
        try:
            point = Checkpoint.read(place, CPU)
        except UcflError:
            continue
        found[point.round] = point
        newest = point.round if place == file else -1
    rounds = torch.tensor([(*sorted(found, reverse=True), -1, -1)[:2]], device=device)
    each = [{*row} - {-1} for row in distributed.gathered(rounds).tolist()]
    if not (common := set.intersection(*each)):
        raise Unusable(
            f"the processes' checkpoints in {file.parent} have no round in common; start the run "
            "again with --fresh."
        )
    if newest != (t := max(common)):
        before(file).replace(file)
    return found[t]


def replaced(folder: Path) -> Path:
    """Where a run is kept that ``--fresh`` replaces, until the new one has stored a round."""
    place = folder.resolve()
    return place.with_name(f".{place.name}.replaced")


def _bring_back(folder: Path) -> None:
    """The run that was to be replaced, unless the new one has stored something."""
    if not replaced(folder).exists():
        return
    if (folder / CHECKPOINT).exists():
        shutil.rmtree(replaced(folder), ignore_errors=True)
    else:
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        replaced(folder).rename(folder.resolve())


def _stored(
    folder: Path,
    configuration: Configuration,
    *,
    resume: bool,
    on_note: Callable[[str], None] | None,
) -> Checkpoint | None:
    """The folder's checkpoint, if it is the one to go on from."""
    instead = "replace it with --fresh, or give --out another folder."
    if not (folder / CONFIGURATION).exists():
        raise Unusable(f"{folder} holds a checkpoint without its {CONFIGURATION}; {instead}")
    try:
        about, rounds = read_configuration(folder), configuration.scenario.rounds
        if differs := differences(about, configuration):
            raise UcflError(
                f"{folder} holds a run of another configuration (different {', '.join(differs)}); "
                f"{instead}"
            )
        if (processes := about.get("processes", 1)) != distributed.ranks():
            raise UcflError(
                f"{folder} was trained by {processes} processes; go on with as many, {instead}"
            )
        point = _newest(folder / CHECKPOINT)
    except UcflError as error:
        raise Unusable(str(error)) from error
    if point is None:  # nothing that could be lost
        return None
    done = point.round
    if done > rounds:
        raise Unusable(
            f"{folder} has {counted(done, 'round')} already, more than the {rounds} asked for; "
            f"{instead}"
        )
    if done < rounds and resume and on_note and is_rewritten(about, configuration):
        on_note(
            f"the code of {configuration.algorithm.name} is another than that of this run's "
            f"{counted(done, 'round')}; the next ones follow the new code (--fresh trains all of "
            "them so)."
        )
    if point.stopped and resume:
        return replace(point, stopped="")
    if (done == rounds or point.stopped) and not resume and on_note:
        on_note(f"{folder} holds this run already; --fresh trains it again.")
    if done < rounds and not resume and not point.stopped:
        raise UcflError(
            f"{folder} holds this run with {done} of {counted(rounds, 'round')}; continue it with "
            f"--resume, {instead}"
        )
    return point


def _newest(file: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; none where nothing was stored."""
    if not (file.exists() or before(file).exists()):
        return None
    try:
        return Checkpoint.read(file, CPU)
    except UcflError:
        point = Checkpoint.load(file, CPU)  # the one before, with a warning
        before(file).replace(file)  # or the damaged one would be kept as the next one's before
        return point


def is_rewritten(about: dict[str, Any], configuration: Configuration) -> bool:
    """Whether the algorithm's source has changed since a run was stored, where that is known."""
    old = (about.get("algorithm_facts") or {}).get("code")
    return bool(old and configuration.algorithm.code and old != configuration.algorithm.code)


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
        words.append("forward() of the model, or loss or metrics")
    return words
