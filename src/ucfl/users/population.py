"""All users' data at once: stacked arrays, padded to the largest user."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucfl.errors import UcflError
from ucfl.memory import check_fits
from ucfl.users.conversion import Pair, as_classes, as_pairs
from ucfl.users.folders import read_folder
from ucfl.users.partition import hold_out
from ucfl.users.tables import frame_pairs

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

#: Share of a user's data that is kept back where nobody says how much.
HELD_OUT = 0.2
#: More are a slip of the hand, such as a label that is no class: memory grows with their number.
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Examples:
    """One split of every user's data: row i holds user i's examples, then padding.

    ``inputs`` is [users, n, ...], uint8 (scaled to [0, 1] when used), float32 or int64;
    ``labels`` is [users, n]; ``sizes`` says how many of the n are real.
    """

    inputs: Tensor
    labels: Tensor
    sizes: Tensor

    @classmethod
    def stack(cls, pairs: Sequence[Pair], shape: tuple[int, ...], dtype: torch.dtype) -> Examples:
        """Stack one (inputs, labels) pair per user, padding with zeros."""
        sizes = torch.tensor([len(labels) for _, labels in pairs])
        longest = int(sizes.max())
        check_fits(
            len(pairs) * longest * (math.prod(shape) * dtype.itemsize + 8.0),
            f"{len(pairs)} users, each padded to the {longest} examples of the largest,",
            "take fewer users, or more even ones",
        )
        inputs = torch.zeros((len(pairs), longest, *shape), dtype=dtype)
        labels = torch.zeros((len(pairs), longest), dtype=torch.int64)
        kind = str(dtype).removeprefix("torch.")  # converted by numpy, which knows every byte order
        for i, (x, y) in enumerate(pairs):
            inputs[i, : len(y)] = torch.from_numpy(np.ascontiguousarray(x, dtype=kind))
            labels[i, : len(y)] = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64))
        return cls(inputs, labels, sizes)

    def select(self, users: Tensor) -> Examples:
        """The same split for some of the users, in the order given."""
        return Examples(self.inputs[users], self.labels[users], self.sizes[users])

    def to(self, device: torch.device) -> Examples:
        """The same split on another device."""
        return Examples(self.inputs.to(device), self.labels.to(device), self.sizes.to(device))

    @property
    def real(self) -> Tensor:
        """[users, n] mask of the examples that are data and not padding."""
        return torch.arange(self.labels.shape[1], device=self.sizes.device) < self.sizes[:, None]


@dataclass(frozen=True)
class Users:
    """The population of a federation: what every user holds, and which group it truly belongs to.

    ``ids`` name the users for the random generator: they stay with a user when users are selected
    or reordered, so a user draws the same batches wherever it stands.
    """

    train: Examples
    validation: Examples
    test: Examples
    classes: int
    ids: Tensor
    names: tuple[str, ...]
    groups: Tensor | None = None
    source: str = "arrays"
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.inputs.shape[2:])

    def split(self, name: Split) -> Examples:
        """One of the three splits by its name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def select(self, users: Iterable[int]) -> Users:
        """Some of the users, in the order given."""
        index = torch.as_tensor(list(users), dtype=torch.int64)
        return replace(
            self,
            train=self.train.select(index),
            validation=self.validation.select(index),
            test=self.test.select(index),
            ids=self.ids[index],
            names=tuple(self.names[i] for i in index.tolist()),
            groups=None if self.groups is None else self.groups[index],
        )

    def to(self, device: torch.device) -> Users:
        """The same users on another device."""
        return replace(
            self,
            train=self.train.to(device),
            validation=self.validation.to(device),
            test=self.test.to(device),
            ids=self.ids.to(device),
            groups=None if self.groups is None else self.groups.to(device),
        )

    def label_counts(self) -> Tensor:
        """[users, classes]: how many training examples of each class every user has."""
        marked = torch.where(self.train.real, self.train.labels, self.classes)
        counts = torch.zeros(len(self), self.classes + 1, dtype=torch.int64, device=marked.device)
        return counts.scatter_add(1, marked, torch.ones_like(marked))[:, : self.classes]

    def with_train(self, inputs: Tensor, labels: Tensor) -> Users:
        """The same users with other training examples, as many of each."""
        return replace(self, train=replace(self.train, inputs=inputs, labels=labels))

    def checksum(self) -> str:
        """SHA-256 of everything that training can see: equal users, equal checksum."""
        digest = hashlib.sha256()
        tensors = [self.ids, torch.tensor(self.classes)]
        tensors += [] if self.groups is None else [self.groups]
        for split in SPLITS:
            part = self.split(split)
            tensors += [part.inputs, part.labels, part.sizes]
        for tensor in tensors:
            array = np.ascontiguousarray(tensor.cpu().numpy())
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    @classmethod
    def from_arrays(
        cls,
        train: Sequence[Any],
        validation: Sequence[Any] | None = None,
        test: Sequence[Any] | None = None,
        *,
        classes: int | None = None,
        groups: Sequence[int] | NDArray[Any] | None = None,
        names: Sequence[str] | None = None,
        source: str = "arrays",
        held_out: float | None = None,
        seed: int = 0,
    ) -> Users:
        """Users from one (inputs, labels) pair each: arrays, tensors or lists.

        Labels are classes, numbered from 0; texts and other labels become classes in their order,
        and ``class_names`` says which. Where neither ``validation`` nor ``test`` is given, a share
        ``held_out`` (a fifth, if none) of every user's data is kept back and halved into the two
        (see :func:`ucfl.users.partition.hold_out`).
        """
        names = tuple(names) if names is not None else numbered_names(len(train))
        if not train:
            raise UcflError("a federation needs at least one user, and none was given.")
        for kind, values in (("names", names), ("groups", groups)):
            if values is not None and len(values) != len(train):
                raise UcflError(f"{len(train)} users were given but {len(values)} {kind}.")
        for split, pairs in (("validation", validation), ("test", test)):
            if pairs is not None and len(pairs) != len(train):
                raise UcflError(f"{len(train)} users have training data but {len(pairs)} {split}.")
        every = {"train": train, "validation": validation, "test": test}
        given, class_names = as_classes(
            {split: as_pairs(p, names) for split, p in every.items() if p is not None}, names
        )
        shape, dtype = _common_form(given, names)
        if held_out is not None and len(given) > 1:
            raise UcflError(
                "users have validation or test data of their own, so 'held_out' has no effect; "
                "leave it out."
            )
        if validation is None and test is None:
            share = HELD_OUT if held_out is None else held_out
            parts = [
                hold_out(len(y), share, np.random.default_rng([seed, i]))
                for i, (_, y) in enumerate(given["train"])
            ]
            given = {
                split: [_take(p, part[s]) for p, part in zip(given["train"], parts, strict=True)]
                for s, split in enumerate(SPLITS)
            }
        nothing = [(x[:0], y[:0]) for x, y in given["train"]]
        by_split = {split: given.get(split, nothing) for split in SPLITS}
        if classes is None:
            largest, name = max(
                (int(y.max()), name)
                for pairs in by_split.values()
                for name, (_, y) in zip(names, pairs, strict=True)
                if len(y)
            )
            if largest >= MOST_CLASSES:
                raise UcflError(
                    f"{name} has the label {largest}, but labels are classes, numbered from 0 "
                    f"without gaps, {MOST_CLASSES:,} at most."
                )
            classes = max(1 + largest, len(class_names or ()), 1)
        elif not 1 <= classes <= MOST_CLASSES:
            raise UcflError(f"classes are 1 to {MOST_CLASSES:,}, not {classes}.")
        for split, pairs in by_split.items():
            for name, (_, y) in zip(names, pairs, strict=True):
                if len(y) and not (y.min() >= 0 and y.max() < classes):
                    raise UcflError(
                        f"{name}: {split} labels run from {y.min()} to {y.max()}, but with "
                        f"{classes} classes they must lie in 0..{classes - 1}."
                    )
        return cls(
            train=Examples.stack(by_split["train"], shape, dtype),
            validation=Examples.stack(by_split["validation"], shape, dtype),
            test=Examples.stack(by_split["test"], shape, dtype),
            classes=classes,
            ids=torch.arange(len(train)),
            names=names,
            groups=None if groups is None else torch.as_tensor(np.asarray(groups)).long(),
            source=source,
            class_names=class_names,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str = "user",
        target: str = "label",
        inputs: Sequence[str] | None = None,
        **options: Any,
    ) -> Users:
        """Users from a pandas DataFrame: a column names each row's user, another is the target.

        Models see the columns ``inputs``, or all others; further options are those of
        :meth:`from_arrays`.
        """
        pairs, names = frame_pairs(frame, user, target, inputs)
        return cls.from_arrays(pairs, **{"names": names, "source": "a data frame", **options})

    @classmethod
    def from_datasets(cls, datasets: Sequence[Any], **options: Any) -> Users:
        """Users from one map-style ``torch.utils.data.Dataset`` each, read once into memory."""
        pairs = []
        for data in datasets:
            items = [data[i] for i in range(len(data))]
            x = np.stack([np.asarray(item[0]) for item in items]) if items else np.zeros((0,))
            pairs.append((x, np.array([_value(item[1]) for item in items])))
        return cls.from_arrays(pairs, **options)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        target: str | None = None,
        held_out: float | None = None,
        seed: int = 0,
    ) -> Users:
        """Users from a folder with one ``.npz`` file each, or one ``.csv`` file each.

        A ``.csv`` file has a line of column names; the column ``target`` is to be learnt (if none
        is given, the one that is called target, label, class or y), the others are the inputs. An
        ``.npz`` file holds ``x`` and ``y`` (held-out data is then split off), or ``x_train``,
        ``y_train`` and optionally the same for ``validation`` and ``test``; a scalar ``group``
        names the user's true group where one is known.
        """
        found = read_folder(Path(folder), target)
        return cls.from_arrays(
            found.pairs["train"],
            found.pairs.get("validation"),
            found.pairs.get("test"),
            groups=found.groups,
            names=found.names,
            source=f"{len(found.names)} files of {Path(folder).name}",
            held_out=held_out,
            seed=seed,
        )


def numbered_names(count: int) -> tuple[str, ...]:
    """What users are called where nobody names them."""
    return tuple(f"user-{i}" for i in range(count))


def _value(label: Any) -> Any:
    """One of a data set's labels, which may be a tensor of one number."""
    return label.item() if hasattr(label, "item") else label


def _take(pair: Pair, index: NDArray[np.int64]) -> Pair:
    return pair[0][index], pair[1][index]


def _common_form(
    by_split: Mapping[str, Sequence[Pair]], names: Sequence[str]
) -> tuple[tuple[int, ...], torch.dtype]:
    """Check every user's arrays; the shape and type that all of them share."""
    shape: tuple[int, ...] | None = None
    kinds: set[str] = set()
    for split, pairs in by_split.items():
        for name, (x, y) in zip(names, pairs, strict=True):
            where = f"{name}: {split} data"
            if x.ndim < 1 or y.ndim != 1:
                raise UcflError(f"{where}: inputs must be one array of examples, labels a 1-D one.")
            if split == "train" and len(y) == 0:
                raise UcflError(f"{name} has no training data; leave the user out or give it some.")
            if len(x) != len(y):
                raise UcflError(f"{where} has {len(x)} inputs but {len(y)} labels.")
            if len(y) == 0:
                continue
            if y.dtype.kind not in "iu":
                raise UcflError(f"{where}: labels must be whole numbers.")
            if x.dtype.kind not in "fiub":
                raise UcflError(f"{where}: inputs must be numbers, not {x.dtype}.")
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                raise UcflError(f"{where} contains NaN or infinite values; clean it first.")
            if x.size and not _fits(x):
                raise UcflError(
                    f"{where} contains numbers that are too large (in {x.dtype}); scale it first."
                )
            if shape is None:
                shape = x.shape[1:]
            elif x.shape[1:] != shape:
                raise UcflError(
                    f"{where}: examples have shape {x.shape[1:]}, but other users have {shape}."
                )
            kinds.add("uint8" if x.dtype == np.uint8 else "f" if x.dtype.kind == "f" else "i")
    if shape is None or len(kinds) != 1:
        raise UcflError("all users' inputs must be of one kind: uint8, floating point or integer.")
    return shape, {"uint8": torch.uint8, "f": torch.float32, "i": torch.int64}[kinds.pop()]


def _fits(x: NDArray[Any]) -> bool:
    """Whether inputs keep their values, up to rounding, in the type that they are stacked in."""
    kind = np.finfo(np.float32) if x.dtype.kind == "f" else np.iinfo(np.int64)
    return x.dtype.kind == "b" or bool(kind.min <= x.min() and x.max() <= kind.max)
