"""What is stopped: commands, what goes on after a stop, and what they leave on disk."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import processes
import torch
from processes import Wrong

from ucfl.errors import UcflError
from ucfl.runs import Run
from ucfl.runs.checkpoint import Checkpoint
from ucfl.runs.files import UNFINISHED
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, HISTORY

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Work:
    """A command, in which ``{place}`` is where it works; ``again`` is added after a stop."""

    kind: str
    command: tuple[str, ...]
    label: str = ""
    again: tuple[str, ...] = ("--resume",)
    start: Callable[..., processes.Ended] = processes.run
    ranks: int = 1
    #: A finished run of another configuration, which the command replaces with ``--fresh``.
    replaces: Path | None = None

    def arguments(self, place, *more):
        return [word.format(place=place) for word in (*self.command, *more)]


def write_users(folder):
    """Four users whose labels can be learnt, an .npz each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(3, 8))
    for i in range(4):
        y = rng.integers(0, 3, 24)
        np.savez(folder / f"u{i}.npz", x=patterns[y] + rng.normal(size=(24, 8)), y=y)


def left(folder):
    """What lies in a folder, file by file, but for what differs between any two runs."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".safetensors":
            point = Checkpoint.read(file, CPU)
            tensors = {**point.history, **point.state, "traffic": point.traffic}
            found[name] = {word: _bytes(value) for word, value in tensors.items()}
            found[name]["round"] = point.round
        elif file.name == HISTORY:
            history = Run.open(file.parent).history
            found[name] = {word: _bytes(history[word].to_numpy()) for word in history}
        elif file.name == CONFIGURATION:
            about = json.loads(file.read_text())
            found[name] = {word: about[word] for word in ("configuration", "scenario", "users")}
        elif file.suffix == ".npz":
            with np.load(file) as stored:
                found[name] = {
                    word: _bytes(stored[word]) for word in stored if word not in ("about", "sha256")
                }
        elif file.is_file() and file.suffix not in (".pdf", ".html", ".csv"):
            found[name] = "a file"
    return found


def _bytes(value):
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        text = repr(value.tolist()) if value.dtype == object else value.tobytes().hex()
        return hashlib.sha256(f"{value.dtype} {value.shape} {text}".encode()).hexdigest()
    return repr(value)


def _checkpoints(folder):
    """Those that are whole: what a process was writing when it died is in a folder of its own."""
    return [
        file
        for file in sorted(folder.rglob(CHECKPOINT))
        if not file.parent.name.endswith(UNFINISHED)
    ]


def check_begun(folder, histories):
    """What is stored after a stop is the beginning of the undisturbed run."""
    for file in _checkpoints(folder):
        try:
            run = Run.open(file.parent)
            stored, name = run.checkpoint.history, f"{file.parent.name} {run.algorithm.label}"
            if (file.parent / HISTORY).exists():
                _ = run.history
        except UcflError as error:
            raise Wrong(f"unreadable after a stop: {error}") from error
        for metric, values in stored.items():
            whole = histories[name][metric][: len(values)] if name in histories else values
            if _bytes(values) != _bytes(whole):
                raise Wrong(f"{metric} after a stop is not the undisturbed run's beginning")


def histories(folder):
    """The histories of the runs in a folder, by their folders' and algorithms' names."""
    found = [Run.open(file.parent) for file in _checkpoints(folder)]
    return {f"{run.folder.name} {run.algorithm.label}": run.checkpoint.history for run in found}


def is_of(folder, label):
    """Whether a folder holds a run of this algorithm that has stored something."""
    return (folder / CHECKPOINT).exists() and Run.open(folder).algorithm.label == label
