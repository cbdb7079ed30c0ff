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

#: How files that are being written end; whoever has the folder may remove those of the dead.
UNFINISHED = ".unfinished"


class NotWritten(UcflError):  # noqa: N818 (what happened)
    """A file could not be written: no space, no permission. What was there before still is."""


def write_atomically(file: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Let ``write`` make the file beside its place, then move it there in one step.

    What was there before goes to ``keep``. At any moment ``file`` is either the old or the new one,
    and both are on disk when this returns: contents and folder are flushed. Otherwise
    :class:`NotWritten`.
    """
    fresh = file.with_name(f".{file.name}-{os.getpid()}-{secrets.token_hex(4)}{UNFINISHED}")
    try:
        fresh.touch(exist_ok=False)  # with the permissions that the person's umask gives
        write(fresh)
        with fresh.open("rb") as f:
            os.fsync(f.fileno())
        if keep is not None and file.exists():
            _link(file, keep)
        fresh.replace(file)
        _flush(file.parent)
    except (OSError, SafetensorError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        raise NotWritten(f"{file} cannot be written ({reason}).") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def _flush(folder: Path) -> None:
    """The folder's entries on disk, where a system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _link(file: Path, keep: Path) -> None:
    """The file under another name as well, in one step."""
    beside = keep.with_name(f".{keep.name}-{os.getpid()}{UNFINISHED}")
    beside.unlink(missing_ok=True)
    try:
        os.link(file, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, beside)
    beside.replace(keep)


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove what processes left that died while writing: files of any name, or of this one."""
    for file in folder.glob(f".{glob.escape(name)}*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            file.unlink()


def unreadable(file: Path, error: Exception, advice: str) -> UcflError:
    """The error for a stored file that is not what it was, or not the person's to read."""
    if isinstance(error, PermissionError):
        return UcflError(
            f"{file} cannot be read (permission denied); ask its owner, or work in another folder."
        )
    return UcflError(f"{file} is damaged ({first_line(error)}); {advice}")
