"""What a user keeps between messages: its state after a round, and the one before, as whole files.

A process that is killed loses nothing but the work of its round: that is a function of the state
before it, and is done again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ucfl.algorithms import State
from ucfl.errors import UcflError, unreadable
from ucfl.runs.checkpoint import before
from ucfl.runs.files import remove_unfinished, write_atomically

STATE, MODEL = "state.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Kept:
    """A user's state after a round of a run."""

    run: str
    round: int
    state: State


@dataclass(frozen=True)
class Store:
    """A user's folder."""

    folder: Path

    @property
    def file(self) -> Path:
        """The newest state."""
        return self.folder / STATE

    def newest(self, run: str | None = None, until: int | None = None) -> Kept | None:
        """The newest state of a run that is not of a later round than ``until``."""
        found = [each for each in (self._read(self.file), self._read(before(self.file))) if each]
        found = [one for one in found if run is None or one.run == run]
        found = [one for one in found if until is None or one.round <= until]
        return max(found, key=lambda one: one.round, default=None)

    def check(self, run: str) -> None:
        """Raise where the folder belongs to another run."""
        held = self.newest()
        if held is not None and held.run != run:
            raise UcflError(
                f"{self.folder} keeps this user's state of another run ({held.run}); start it "
                "with another --state folder, or remove that one."
            )

    def keep(self, kept: Kept) -> None:
        """Write a state; the one before stays, unless it is of the same or a later round."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder)
        tensors = {
            name: value.detach().cpu().clone().contiguous()
            for name, value in kept.state.items()
            if isinstance(value, Tensor)
        }
        values = {name: v for name, v in kept.state.items() if not isinstance(v, Tensor)}
        about = json.dumps({"run": kept.run, "round": kept.round, "values": values})
        newest = self._read(self.file)
        earlier = newest is not None and newest.round < kept.round
        write_atomically(
            self.file,
            lambda path: save_file(
                tensors, path, {"ucfl": about, "sha256": _digest(about, tensors)}
            ),
            before(self.file) if earlier else None,
        )

    def keep_model(self, tensors: dict[str, Tensor]) -> None:
        """Write the model that the user would deploy."""
        self.folder.mkdir(parents=True, exist_ok=True)
        copies = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        write_atomically(self.folder / MODEL, lambda path: save_file(copies, path))

    def _read(self, file: Path) -> Kept | None:
        if not file.exists():
            return None
        try:
            with safe_open(file, "pt") as stored:
                metadata = stored.metadata()
                tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
            if metadata["sha256"] != _digest(metadata["ucfl"], tensors):
                raise ValueError("its checksum does not fit its contents")
            about: dict[str, Any] = json.loads(metadata["ucfl"])
            return Kept(about["run"], int(about["round"]), {**tensors, **about["values"]})
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise unreadable(
                file, error, "remove it: the user then starts from the server's model."
            ) from error


def _digest(about: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        array = tensors[name].contiguous()
        digest.update(f"{name}{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.numpy().tobytes())
    return digest.hexdigest()
