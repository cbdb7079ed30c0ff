"""NumPy's files, read without trust: nothing is allocated that the file cannot hold."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as layout
from numpy.typing import NDArray

from ucfl.errors import unreadable

#: Deflate makes nothing smaller than by this factor: what claims more is made to fill a memory.
MOST_DEFLATED = 1032


def read_npz(file: Path, advice: str) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file; ``advice`` ends the sentence about one that is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_sizes(members, file.stat().st_size)
            arrays = {}
            for member in members:
                with archive.open(member) as stream:
                    array = _read_array(stream, member.file_size)
                    stream.read(1)  # the end, where the archive's own checksum is compared
                arrays[member.filename.removesuffix(".npy")] = array
            return arrays
    except Exception as error:  # zipfile and numpy raise a dozen kinds for a damaged archive
        raise unreadable(file, error, advice) from error


def read_npy(file: Path, advice: str) -> NDArray[Any]:
    """The array of an ``.npy`` file."""
    try:
        with file.open("rb") as stream:
            return _read_array(stream, file.stat().st_size)
    except Exception as error:
        raise unreadable(file, error, advice) from error


def _check_sizes(members: list[zipfile.ZipInfo], available: int) -> None:
    """Raise ValueError where members cannot be as large as they say, or fill the machine."""
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed in a way that numpy does not write")
        if member.file_size > MOST_DEFLATED * member.compress_size:
            raise ValueError("it says that it holds more than it can")
    if sum(member.compress_size for member in members) > available:
        raise ValueError("it says that it holds more than it can")
    if sum(member.file_size for member in members) > _memory():
        raise ValueError("it holds more than this machine's memory")


def _read_array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """The array in a stream of so many bytes."""
    version = layout.read_magic(stream)
    headers = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
    if version not in headers:
        raise ValueError(f"arrays of version {version} are not known")
    try:
        shape, _, dtype = headers[version](stream)
    except MemoryError:  # Python's parser says so for a header of many nested signs
        raise ValueError("its header cannot be read") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError("it holds something else than numbers and text")
    if math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError("its header does not fit its length")
    stream.seek(0)
    return layout.read_array(stream, allow_pickle=False)


def _memory() -> float:
    """The machine's memory in bytes, where the system tells it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf
