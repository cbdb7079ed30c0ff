"""A run's state on disk: one file with a checksum, replaced whole, the one before kept beside."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ucfl.algorithms import State
from ucfl.errors import UcflError, UcflWarning, first_line


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run knows after ``round`` rounds."""

    round: int
    seconds: float
    state: State
    history: dict[str, Tensor]  # metric -> [round + 1, users]
    traffic: Tensor  # [round, 3]: models down, models up, work, of every round

    def save(self, file: Path) -> None:
        """Write to ``file``, atomically."""
        tensors = {f"history/{k}": v for k, v in self.history.items()}
        tensors["traffic"] = self.traffic
        values: dict[str, Any] = {}
        for name, value in self.state.items():
            if isinstance(value, Tensor):
                # A copy: safetensors refuses tensors that share memory, and expanded ones do.
                tensors[f"state/{name}"] = value.detach().to("cpu", copy=True).contiguous()
            else:
                values[name] = value
        about = json.dumps({"round": self.round, "seconds": self.seconds, "values": values})
        metadata = {"ucfl": about, "sha256": _digest(about, tensors)}
        write_atomically(file, lambda path: save_file(tensors, path, metadata), before(file))

    @classmethod
    def load(cls, file: Path, device: torch.device) -> Checkpoint:
        """Read what :meth:`save` wrote; where that is damaged, the one before, with a warning."""
        try:
            return cls._read(file, device)
        except UcflError as error:
            if not before(file).exists():
                raise
            point = cls._read(before(file), device)
            reason = str(error).partition(";")[0]
            warnings.warn(
                f"{reason}; the one before it, of round {point.round}, is taken instead.",
                UcflWarning,
                stacklevel=2,
            )
            return point

    @classmethod
    def _read(cls, file: Path, device: torch.device) -> Checkpoint:
        try:
            with safe_open(file, "pt") as stored:
                metadata = stored.metadata()
                tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
            text = metadata["ucfl"]
            # Version 0.1 stored no checksum.
            if metadata.get("sha256", digest := _digest(text, tensors)) != digest:
                raise ValueError("its checksum does not fit its contents")
            about = json.loads(text)
            state = {k[6:]: t.to(device) for k, t in tensors.items() if k.startswith("state/")}
            history = {k[8:]: t for k, t in tensors.items() if k.startswith("history/")}
            state |= about["values"]
            return cls(about["round"], about["seconds"], state, history, tensors["traffic"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UcflError(
                f"{file} is damaged ({first_line(error)}); start the run again with --fresh."
            ) from error


def before(file: Path) -> Path:
    """Where the checkpoint before this one is, until a run is finished."""
    return file.with_name(f"{file.stem}-before{file.suffix}")


def _digest(about: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all that a checkpoint holds, names, types and shapes included."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_atomically(file: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Let ``write`` make the file beside its place, then move it there in one step.

    What was there before goes to ``keep``. At any moment ``file`` is either the old or the new one,
    and both are on disk when this returns: contents and folder are flushed.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    os.close(handle)
    fresh = Path(name)
    try:
        write(fresh)
        with fresh.open("rb") as f:
            os.fsync(f.fileno())
        if keep is not None and file.exists():
            _keep(file, keep)
        fresh.replace(file)
        with contextlib.suppress(OSError):  # not every system can flush a folder
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        fresh.unlink(missing_ok=True)


def _keep(file: Path, keep: Path) -> None:
    """The file under another name as well, in one step."""
    beside = keep.with_name(f".{keep.name}-{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        os.link(file, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, beside)
    beside.replace(keep)
