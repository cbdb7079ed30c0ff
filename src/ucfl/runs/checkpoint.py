"""A run's state on disk: one file, replaced whole, so a crash leaves the last good one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ucfl.algorithms import State
from ucfl.errors import UcflError


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
        about = {"round": self.round, "seconds": self.seconds, "values": values}
        metadata = {"ucfl": json.dumps(about)}
        write_atomically(file, lambda path: save_file(tensors, path, metadata))

    @classmethod
    def load(cls, file: Path, device: torch.device) -> Checkpoint:
        """Read what :meth:`save` wrote."""
        try:
            with safe_open(file, "pt") as stored:
                about = json.loads(stored.metadata()["ucfl"])
                tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise UcflError(
                f"{file} is damaged ({error}); start the run again with --fresh."
            ) from error
        state = {k[6:]: t.to(device) for k, t in tensors.items() if k.startswith("state/")}
        history = {k[8:]: t for k, t in tensors.items() if k.startswith("history/")}
        state |= about["values"]
        return cls(about["round"], about["seconds"], state, history, tensors["traffic"])


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make the file beside its place, then move it there in one step."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    os.close(handle)
    fresh = Path(name)
    try:
        write(fresh)
        with fresh.open("rb") as f:
            os.fsync(f.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
