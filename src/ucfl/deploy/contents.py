"""What a message holds: plain values as JSON, and arrays as raw numbers. Nothing is unpickled.

What comes from another machine is material to check: kinds, shapes and lengths are compared before
a number is looked at, and no format is parsed that could name code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

#: How arrays are written: their bytes in C order, little-endian.
RAW = "ucfl.raw"
#: Kinds of numbers that are sent.
KINDS = ("float32", "float64", "int64", "bool", "uint8")
#: The record with a message's plain values.
CALL = "call"


class Refused(Exception):  # noqa: N818 (what becomes of it)
    """What another machine sent cannot be used; the text says why."""


def record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as one record; several messages may hold the same one, which is stored once."""
    arrays = {}
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        if array.dtype.name not in KINDS:
            raise TypeError(f"{name} has numbers of kind {array.dtype}, which are not sent")
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        arrays[name] = Array(array.dtype.name, tuple(map(int, array.shape)), RAW, data)
    return ArrayRecord(arrays)


def content(call: Mapping[str, Any], **records: ArrayRecord) -> RecordDict:
    """A message's content."""
    return RecordDict({CALL: ConfigRecord({"json": json.dumps(call)}), **records})


def call_of(found: RecordDict) -> dict[str, Any]:
    """A message's plain values."""
    try:
        value = json.loads(str(found.config_records[CALL]["json"]))
    except (KeyError, ValueError, RecursionError) as error:
        raise Refused("it holds no readable values") from error
    if not isinstance(value, dict):
        raise Refused("its values have no names")
    return value


def tensors_of(found: RecordDict, name: str) -> dict[str, Tensor]:
    """The tensors of one of a message's records; none where it is not there."""
    if name not in found.array_records:
        return {}
    return {str(key): _tensor(str(key), one) for key, one in found.array_records[name].items()}


def _tensor(name: str, array: Array) -> Tensor:
    if array.stype != RAW or array.dtype not in KINDS:
        raise Refused(f"{name[:40]!r} is written in an unknown way")
    if any(length < 0 for length in array.shape):
        raise Refused(f"{name[:40]!r} has an impossible shape")
    kind = np.dtype(array.dtype).newbyteorder("<")
    if math.prod(array.shape) * kind.itemsize != len(array.data):
        raise Refused(f"{name[:40]!r} has {len(array.data)} bytes, which do not fit its shape")
    numbers = np.frombuffer(array.data, dtype=kind).reshape(array.shape)
    return torch.from_numpy(numbers.astype(kind.newbyteorder("="), copy=True))


def checked(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> dict[str, Tensor]:
    """The tensors, where they have exactly these names, kinds and shapes and are all finite."""
    if sorted(tensors) != sorted(shapes):
        raise Refused(f"it holds {_names(tensors)} where {_names(shapes)} were asked for")
    for name, (kind, shape) in shapes.items():
        value = tensors[name]
        if tuple(value.shape) != shape:
            raise Refused(f"{name!r} has the shape {tuple(value.shape)} instead of {shape}")
        if value.dtype != kind:
            raise Refused(f"{name!r} holds {value.dtype} instead of {kind}")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise Refused(f"{name!r} holds NaN or infinite numbers")
    return dict(tensors)


def size(tensors: Mapping[str, Tensor]) -> int:
    """How many bytes of numbers these are."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def _names(found: Mapping[str, Any]) -> str:
    return ", ".join(repr(name[:40]) for name in sorted(found)[:6]) or "nothing"
