"""Files that are either whole or not there: written beside their place, flushed, renamed."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from ucfl.errors import UcflError, first_line

#: How names end of what is being written; whoever has the folder may remove what the dead left.
UNFINISHED = ".unfinished"


class NotWritten(UcflError):  # noqa: N818 (what happened)
    """A file could not be written: no space, no permission. What was there before still is."""

    @property
    def what(self) -> str:
        """The sentence without its advice."""
        return str(self).partition(";")[0]


def write_atomically(file: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Let ``write`` make the file beside its place, then move it there in one step.

    What was there before goes to ``keep``. At any moment ``file`` is either the old or the new one,
    and both are on disk when this returns: contents and folder are flushed. Otherwise
    :class:`NotWritten`, and nothing of the new one is left.
    """
    scratch = file.with_name(f".{file.name}-{os.getpid()}-{secrets.token_hex(4)}{UNFINISHED}")
    fresh = scratch / file.name  # in a folder of its own: libraries leave files beside theirs
    try:
        scratch.mkdir(parents=True)
        fresh.touch()
        permissions = fresh.stat().st_mode  # those that the person's umask gives
        write(fresh)
        fresh.chmod(permissions)
        with fresh.open("rb") as f:
            os.fsync(f.fileno())
        if keep is not None and file.exists():
            _link(file, keep, scratch)
        fresh.replace(file)
        _flush(file.parent)
    except (OSError, SafetensorError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        raise NotWritten(
            f"{file} cannot be written ({reason}); free some space there, or give --out another "
            "place."
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _flush(folder: Path) -> None:
    """The folder's entries on disk, where a system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _link(file: Path, keep: Path, scratch: Path) -> None:
    """The file under another name as well, in one step."""
    beside = scratch / f"{file.name}-kept"
    try:
        os.link(file, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, beside)
    beside.replace(keep)


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove what processes left that died while writing: files of any name, or of this one."""
    for place in folder.glob(f".{glob.escape(name)}*{UNFINISHED}"):
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:  # of version 0.1
            with contextlib.suppress(OSError):
                place.unlink()
