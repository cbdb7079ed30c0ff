"""A run's state on disk: one file with a checksum, replaced whole, the one before kept beside."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ucfl.algorithms import Findings, State
from ucfl.collaboration import Collaboration, MixedPart
from ucfl.errors import UcflError, UcflWarning, unreadable
from ucfl.runs.files import write_atomically
from ucfl.runs.schema import FORMAT, StoredPoint, parts_digest, validated
from ucfl.wireless import Audience

#: What helps where a run's file is damaged.
AGAIN = "start the run again with --fresh."


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run knows after ``round`` rounds.

    ``present`` [round, users] says who took part in which round (None: everyone in all of them),
    ``late`` [round, users] who was asked and missed the round's deadline (None: there is none);
    ``dropped`` names the users whose models diverged, with the round from which they are absent;
    ``findings`` are what the algorithm says of the state (None: not asked, or not yet stored then);
    ``stopped`` says by which callback the run was ended before its last round; ``newcomers`` has
    the metrics of who comes after the last round, where training is over.
    """

    round: int
    seconds: float
    state: State
    history: dict[str, Tensor]  # metric -> [round + 1, users]
    traffic: Tensor  # [round, 3]: models down, models up, work, of every round
    dropped: Mapping[int, int] = field(default_factory=dict)
    present: Tensor | None = None
    late: Tensor | None = None
    newcomers: Mapping[str, Tensor] = field(default_factory=dict)  # metric -> [newcomers]
    findings: Findings | None = None
    stopped: str = ""

    @property
    def cohorts(self) -> Tensor:
        """[round, users]: who took part in which round."""
        users = next(iter(self.history.values())).shape[-1]
        everyone = torch.ones(self.round, users, dtype=torch.bool)
        return everyone if self.present is None else self.present

    @property
    def missed(self) -> Tensor:
        """[round, users]: who was asked and missed the deadline in which round."""
        return torch.zeros_like(self.cohorts) if self.late is None else self.late

    def save(self, file: Path) -> None:
        """Write to ``file``, atomically."""
        tensors = {f"history/{k}": v for k, v in self.history.items()}
        tensors["traffic"] = self.traffic
        tensors |= {} if self.present is None else {"present": self.present}
        tensors |= {f"newcomers/{k}": v for k, v in self.newcomers.items()}
        tensors |= {} if self.late is None else {"late": self.late}
        found, said = _packed(self.findings)
        tensors |= found
        values: dict[str, Any] = {}
        for name, value in self.state.items():
            if isinstance(value, Tensor):
                tensors[f"state/{name}"] = _copied(value)
            else:
                values[name] = value
        about = json.dumps(
            {
                "format": FORMAT,
                "round": self.round,
                "seconds": self.seconds,
                "values": values,
                "dropped": {str(user): t for user, t in self.dropped.items()},
                "stopped": self.stopped,
                **said,
            }
        )
        metadata = {"ucfl": about, "sha256": _digest(about, tensors)}
        write_atomically(file, lambda path: save_file(tensors, path, metadata), before(file))

    @classmethod
    def load(cls, file: Path, device: torch.device) -> Checkpoint:
        """Read what :meth:`save` wrote; where that is damaged, the one before, with a warning."""
        try:
            return cls.read(file, device)
        except UcflError as error:
            if not before(file).exists():
                raise
            point = cls.read(before(file), device)
            reason = str(error).partition(";")[0]
            warnings.warn(
                f"{reason}; the one before it, of round {point.round}, is taken instead.",
                UcflWarning,
                stacklevel=2,
            )
            return point

    @classmethod
    def read(cls, file: Path, device: torch.device) -> Checkpoint:
        """This very file."""
        try:
            file.open("rb").close()  # what is missing or forbidden is not damaged
            with safe_open(file, "pt") as stored:
                metadata = stored.metadata()
                tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
            text = metadata["ucfl"]
            about = validated(StoredPoint, json.loads(text))
            signed = about.get("format", 1) != 1 or "sha256" in metadata
            if signed and metadata.get("sha256") != _digest(text, tensors):
                raise ValueError("its checksum does not fit its contents")
            state = {k[6:]: t.to(device) for k, t in tensors.items() if k.startswith("state/")}
            history = {k[8:]: t for k, t in tensors.items() if k.startswith("history/")}
            newcomers = {k[10:]: t for k, t in tensors.items() if k.startswith("newcomers/")}
            state |= about["values"]
            dropped = {int(user): t for user, t in about.get("dropped", {}).items()}
            point = cls(
                round=about["round"],
                seconds=about["seconds"],
                state=state,
                history=history,
                traffic=tensors["traffic"],
                dropped=dropped,
                present=tensors.get("present"),
                late=tensors.get("late"),
                newcomers=newcomers,
                findings=_unpacked(tensors, about),
                stopped=about.get("stopped", ""),
            )
            point.check()
            return point
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise unreadable(file, error, AGAIN) from error

    def check(self) -> None:
        """Raise ValueError unless the parts fit together."""
        shapes = {tuple(values.shape) for values in self.history.values()}
        if not self.history or len(shapes) != 1:
            raise ValueError("its histories do not fit each other")
        (shape,) = shapes
        if len(shape) != 2 or shape[0] != self.round + 1 or shape[1] < 1:
            raise ValueError("its history does not fit its round")
        if tuple(self.traffic.shape) != (self.round, 3):
            raise ValueError("its traffic does not fit its round")
        for who in (self.present, self.late):
            if who is not None and tuple(who.shape) != (self.round, shape[1]):
                raise ValueError("its cohorts do not fit its round")


def checkpoint_name(rank: int = 0, ranks: int = 1) -> str:
    """What the checkpoint of one of several processes is called; the first one's speaks for all."""
    return "checkpoint.safetensors" if rank == 0 else f"checkpoint-{rank}of{ranks}.safetensors"


def before(file: Path) -> Path:
    """Where the checkpoint before this one is, until a run is finished."""
    return file.with_name(f"{file.stem}-before{file.suffix}")


def _copied(tensor: Tensor) -> Tensor:
    """A copy on the CPU: safetensors refuses tensors that share memory, and expanded ones do."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _packed(findings: Findings | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Findings as named tensors, and the rest of them as plain values."""
    if findings is None:
        return {}, {}
    heard = () if findings.audience is None else findings.audience.parts
    named: dict[str, Tensor | None] = {
        f"audience/{i}": torch.from_numpy(labels) for i, (_, labels) in enumerate(heard)
    }
    found, told = findings.collaboration, None
    if found is not None:
        named |= {word: getattr(found, word) for word in ("weights", "labels", "silhouettes")}
        for i, part in enumerate(found.parts):
            named |= {f"part/{i}/{word}": getattr(part, word) for word in ("weights", "labels")}
        words = ("name", "share", "streams")
        parts = [{word: getattr(part, word) for word in words} for part in found.parts]
        told = {"spread": found.spread, "parts": parts}
    tensors = {f"findings/{name}": _copied(t) for name, t in named.items() if t is not None}
    shares = None if findings.audience is None else [share for share, _ in heard]
    return tensors, {"findings": {"audience": shares, "collaboration": told}}


def _unpacked(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Findings | None:
    """What :func:`_packed` packed; None where nothing was stored."""
    if about.get("findings") is None:
        return None
    named = {name[9:]: tensor for name, tensor in tensors.items() if name.startswith("findings/")}
    shares, told = about["findings"]["audience"], about["findings"]["collaboration"]
    audience = shares and Audience(
        tuple((share, named[f"audience/{i}"].numpy()) for i, share in enumerate(shares))
    )
    if told is None:
        return Findings(audience or None)
    parts = tuple(
        MixedPart(
            **part, weights=named.get(f"part/{i}/weights"), labels=named.get(f"part/{i}/labels")
        )
        for i, part in enumerate(told["parts"])
    )
    tables = {word: named.get(word) for word in ("weights", "labels", "silhouettes")}
    found = Collaboration(**tables, spread=told["spread"], parts=parts)
    return Findings(audience or None, found)


def _digest(about: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all that a checkpoint holds."""
    return parts_digest(
        about,
        (
            (
                f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}",
                tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data,
            )
            for name in sorted(tensors)
        ),
    )
