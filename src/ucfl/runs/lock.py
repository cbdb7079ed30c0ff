"""One process at a time on a run's folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ucfl.errors import UcflError


class Busy(UcflError):  # noqa: N818 (it is no mistake)
    """Another process has the folder."""


@contextmanager
def held(folder: Path, on_note: Callable[[str], None] | None = None) -> Iterator[None]:
    """The folder for this process alone, or :class:`Busy`, which says who has it.

    The lock is a file beside the folder, locked by the system: it goes when its process does,
    however that ends, and the next one takes it over and says so.
    """
    file = _lock_file(folder)
    handle = _locked(file, folder)
    try:
        if (gone := _owner(handle)) and on_note:
            on_note(f"{folder} is taken over from {gone}, which is gone.")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with contextlib.suppress(OSError):  # on a full disk it is a lock without a name
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(owner).encode(), 0)
        yield
    finally:
        file.unlink(missing_ok=True)  # before it is given up: nobody may lock what is not there
        os.close(handle)


def owner(folder: Path) -> str:
    """Who has the folder, in words; nothing where nobody does, or its owner on this host is gone.

    Nothing is locked to find out: a process that starts meanwhile would be told that it is in use.
    """
    try:
        text = _lock_file(folder).read_bytes()
    except OSError:
        return ""
    return "" if _is_gone(text) else _in_words(text) or "another process"


def _lock_file(folder: Path) -> Path:
    """Beside the folder itself, whatever links lead there."""
    place = folder.resolve()
    return place.with_name(f".{place.name}.lock")


def _locked(file: Path, folder: Path) -> int:
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)  # as the umask says
        except OSError as error:
            raise UcflError(
                f"{folder} cannot be written ({error.strerror}); give --out another folder."
            ) from error
        if not _lock(handle):
            who = _new_owner(handle)
            os.close(handle)
            raise Busy(
                f"{folder} is in use by {who or 'another process'}; wait for it, or give --out "
                "another folder."
            )
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                return handle
        os.close(handle)  # its owner has just removed it: another file has that name, or none


def _lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(handle: int) -> str:
    """Who wrote the lock last, in words; nothing where nobody did."""
    try:
        return _in_words(os.pread(handle, 4096, 0))
    except OSError:
        return ""


def _new_owner(handle: int) -> str:
    """Who has the lock: it writes its name right after it has it, over that of the dead."""
    for _ in range(100):
        text = os.pread(handle, 4096, 0)
        if (who := _in_words(text)) and not _is_gone(text):
            return who
        time.sleep(0.01)
    return ""


def _in_words(text: bytes) -> str:
    try:
        owner = json.loads(text)
        since = time.strftime("%d %b %H:%M", time.localtime(owner["since"]))
        return f"process {owner['pid']} on {owner['host']} (since {since})"
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return ""


def _is_gone(text: bytes) -> bool:
    """Whether the process that wrote the lock is known to be gone: on this host, and not there."""
    try:
        owner = json.loads(text)
        if owner["host"] == socket.gethostname() and os.name == "posix":
            os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError):
        return False
    return False
