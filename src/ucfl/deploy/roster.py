"""Who is who: the users of a deployed run, as the server knows them without their data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ucfl.deploy.contents import Refused
from ucfl.deploy.protocol import PROTOCOL, Joined
from ucfl.errors import UcflError, unreadable
from ucfl.federation import Federation, draws
from ucfl.runs.deployment import BETWEEN_MACHINES
from ucfl.runs.files import write_atomically
from ucfl.users import Examples, Users


@dataclass(frozen=True)
class Member:
    """A user: what it told when it joined, and whether it was there from the start."""

    about: Joined
    founder: bool = True

    @property
    def name(self) -> str:
        """Under which its key is registered."""
        return self.about.name


@dataclass(frozen=True)
class Roster:
    """The users of a run, by their places; ``run`` is a name that no other run has."""

    run: str
    members: tuple[Member, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """By place."""
        return tuple(member.name for member in self.members)

    @property
    def founders(self) -> Tensor:
        """[m]: who was there from the start, and has a part in mixtures."""
        return torch.tensor([member.founder for member in self.members])

    def place(self, name: str) -> int:
        """Where a user is."""
        return self.names.index(name)

    def check(self, about: Joined) -> None:
        """Raise :class:`Refused` unless a user's data has the form of the others'."""
        if about.protocol != PROTOCOL:
            raise Refused(f"it speaks protocol {about.protocol}, not {PROTOCOL}: another version")
        if not about.sizes.get("train"):
            raise Refused("it has no training examples")
        if not self.members:
            return
        first = self.members[0].about
        for word in ("input_shape", "input_type", "target_shape", "target_type"):
            mine, theirs = getattr(first, word), getattr(about, word)
            if mine != theirs:
                raise Refused(f"its data has {word} {theirs} where the others have {mine}")
        if bool(first.classes) != bool(about.classes):
            raise Refused("its targets are classes and the others' numbers, or the reverse")

    def write(self, folder: Path, sent: Sequence[dict[str, Any]]) -> None:
        """Keep it, with what was sent in each round."""
        value = {
            "run": self.run,
            "users": [{**m.about.model_dump(), "founder": m.founder} for m in self.members],
            "bytes": list(sent),
        }
        text = json.dumps(value, indent=1) + "\n"
        write_atomically(folder / BETWEEN_MACHINES, lambda path: path.write_text(text))

    @classmethod
    def read(cls, folder: Path) -> tuple[Roster, list[dict[str, Any]]]:
        """What was kept."""
        file = folder / BETWEEN_MACHINES
        try:
            value = json.loads(file.read_text())
            members = []
            for each in value["users"]:
                founder = bool(each.pop("founder"))
                members.append(Member(Joined.model_validate_json(json.dumps(each)), founder))
            return cls(str(value["run"]), tuple(members)), list(value["bytes"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(file, error, "start the run again with --fresh.") from error


class Elsewhere(Users):
    """Users whose data is on their own machines: sizes and names are theirs, the rest is not."""

    data: str

    @classmethod
    def of(cls, roster: Roster, classes: int) -> Elsewhere:
        """The users of a roster; examples are made up, and never trained on."""
        first, members = roster.members[0].about, roster.members
        example, target = _example(first), torch.zeros((), dtype=_kind(first.target_type))
        target = target.expand(tuple(first.target_shape))

        def examples(split: Any) -> Examples:
            sizes = torch.tensor([member.about.sizes.get(split, 0) for member in members])
            n = int(sizes.max())
            inputs = example.expand(len(members), n, *example.shape)
            return Examples(inputs, target.expand(len(members), n, *target.shape), sizes)

        found = cls(
            train=examples("train"),
            validation=examples("validation"),
            test=examples("test"),
            classes=classes,
            ids=torch.arange(len(members)),
            names=roster.names,
            source="users' own machines",
        )
        told = "".join(f"{m.name}{m.about.checksum}" for m in members if m.founder)
        object.__setattr__(found, "data", hashlib.sha256(told.encode()).hexdigest())
        return found

    def label_counts(self) -> None:
        """Not known here."""

    def checksum(self) -> str:
        """Of what the users of the start told of their data."""
        return self.data


class AtServer(Federation):
    """The server's side of a federation: sizes, the model and who is present, but nobody's data."""

    def _elsewhere(self, *_: Any, **__: Any) -> NoReturn:
        raise UcflError(
            "the algorithm looks at users' data, which is not at the server; it cannot be deployed."
        )

    train = iterate = collaboration_round = prototypes = _elsewhere
    metrics = metric = loss = losses = outputs = example_losses = _elsewhere


def _kind(name: str) -> torch.dtype:
    kind = getattr(torch, name)
    assert isinstance(kind, torch.dtype)
    return kind


def _example(about: Joined) -> Tensor:
    """An input of the users' form. Random, as all zeros would tell nothing of a model."""
    shape, kind = tuple(about.input_shape), _kind(about.input_type)
    if kind == torch.int64:  # tokens: 0 is in every vocabulary
        return torch.zeros(shape, dtype=kind)
    numbers = draws.uniform(0, 0, torch.arange(math.prod(shape)), -29).view(shape)
    return (255 * numbers).to(kind) if kind == torch.uint8 else numbers.to(kind)
