"""Numbers out of a pickle that nobody trusts: nothing of it is run, nothing allocated on its word.

Only plain containers and NumPy's arrays of numbers are admitted, and NumPy itself is not called:
stand-ins take what the pickle would hand to it. Memory is bounded by the file's own length.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as layout
from numpy.typing import NDArray

from ucfl.errors import unreadable

#: What builds containers, texts, numbers and calls of the stand-ins; no instances, no extensions.
OPCODES = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "BININT",
    "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "APPEND", "APPENDS", "LIST",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "BUILD",
)  # fmt: skip
#: Types of numbers in arrays; ``O`` is an array of the objects themselves.
NUMBERS = ("f4", "f8", "i4", "i8")
OBJECTS = ("O", "O8")
LARGEST = 1 << 30


def read_pickled_npy(file: Path, advice: str) -> Any:
    """The one object in an ``.npy`` file of objects; its arrays are :class:`PickledArray`."""
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError("it is too large")
        with file.open("rb") as stream:
            if layout.read_magic(stream) != (1, 0):
                raise ValueError("it is of another version")
            try:
                shape, _, dtype = layout.read_array_header_1_0(stream)
            except MemoryError:  # Python's parser says so for a header of many nested signs
                raise ValueError("its header cannot be read") from None
            if not dtype.hasobject or shape != ():
                raise ValueError("it does not hold one object")
            found = _load(stream.read())
        if not isinstance(found, PickledArray) or found.objects is None or len(found.objects) != 1:
            raise ValueError("it does not hold one object")
        return found.objects[0]
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise unreadable(file, error, advice) from error


class PickledArray:
    """An array as a pickle describes it."""

    __slots__ = ("numbers", "objects")

    def __init__(self) -> None:
        self.numbers: NDArray[Any] | None = None
        self.objects: list[Any] | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, Any]) -> None:
        _, shape, kind, columns_first, raw = state
        if not isinstance(kind, _Type) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError("an array has no shape or no type")
        count = math.prod(shape)
        if kind.name in OBJECTS:
            if type(raw) is not list or len(raw) != count:
                raise ValueError("an array's shape and its contents disagree")
            self.objects = raw
            return
        dtype = np.dtype(kind.order + kind.name)
        if type(raw) is not bytes or len(raw) != count * dtype.itemsize:
            raise ValueError("an array's shape and its contents disagree")
        self.numbers = np.frombuffer(raw, dtype).reshape(shape, order="F" if columns_first else "C")


class _Type:
    """In place of ``numpy.dtype``."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, *_: object) -> None:
        if name not in (*NUMBERS, *OBJECTS):
            raise ValueError("an array is of a type that is not known")
        self.name, self.order = name, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|"):
            raise ValueError("an array is of a byte order that is not known")
        self.order = ">" if state[1] == ">" else "<"


class _Empty:
    """In place of ``numpy.core.multiarray._reconstruct``, whose arguments decide nothing."""

    __slots__ = ()

    def __call__(self, *_: object) -> PickledArray:
        return PickledArray()


class _Bytes:
    """In place of ``_codecs.encode``: bytes that an old protocol writes as text."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise ValueError("it asks for something else than bytes")
        return text.encode("latin1")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        stand_ins = {
            ("numpy.core.multiarray", "_reconstruct"): _Empty(),
            ("numpy._core.multiarray", "_reconstruct"): _Empty(),
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): _Type,
            ("_codecs", "encode"): _Bytes(),
        }
        if (module, name) not in stand_ins:
            raise ValueError("it asks for something else than arrays of numbers")
        return stand_ins[module, name]


def _load(contents: bytes) -> Any:
    # Every length is compared with what is there before anything is allocated by it.
    for count, (opcode, argument, _) in enumerate(pickletools.genops(contents)):
        if opcode.name not in OPCODES:
            raise ValueError("it asks for something else than containers and arrays of numbers")
        if opcode.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise ValueError("it numbers more objects than it has")
    return _Reader(io.BytesIO(contents)).load()
