"""All users' data at once: stacked arrays, padded to the largest user."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucfl.errors import UcflError, UcflWarning
from ucfl.memory import check_fits
from ucfl.users.conversion import as_classes, as_pairs
from ucfl.users.folders import read_folder
from ucfl.users.form import Form, Pair, common_form
from ucfl.users.names import checked_names, listed, numbered_names, place_of
from ucfl.users.partition import hold_out
from ucfl.users.tables import frame_pairs, numbered
from ucfl.users.words import in_words

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

#: Share of a user's data that is kept back where nobody says how much.
HELD_OUT = 0.2


@dataclass(frozen=True)
class Examples:
    """One split of every user's data: row i holds user i's examples, then padding.

    ``inputs`` is [users, n, ...], uint8 (scaled to [0, 1] when used), float32 or int64;
    ``targets`` is [users, n, ...]: classes in int64, or numbers in float32; ``sizes`` says how
    many of the n are real.
    """

    inputs: Tensor
    targets: Tensor
    sizes: Tensor

    @classmethod
    def stack(cls, pairs: Sequence[Pair], form: Form) -> Examples:
        """Stack one (inputs, targets) pair per user, padding with zeros."""
        sizes = torch.tensor([len(y) for _, y in pairs])
        longest = int(sizes.max())
        check_fits(
            len(pairs) * longest * form.bytes,
            f"{len(pairs)} users, each padded to the {longest} examples of the largest,",
            "take fewer users, or more even ones",
        )
        inputs = torch.zeros((len(pairs), longest, *form.shape), dtype=form.dtype)
        targets = torch.zeros((len(pairs), longest, *form.target_shape), dtype=form.target_dtype)
        for i, pair in enumerate(pairs):
            for stacked, array in zip((inputs, targets), pair, strict=True):
                if len(array):  # converted by numpy, which knows every byte order
                    kind = str(stacked.dtype).removeprefix("torch.")
                    one = torch.from_numpy(np.ascontiguousarray(array, dtype=kind))
                    stacked[i, : len(array)] = one
        return cls(inputs, targets, sizes)

    def select(self, users: Tensor) -> Examples:
        """The same split for some of the users, in the order given."""
        return Examples(self.inputs[users], self.targets[users], self.sizes[users])

    def to(self, device: torch.device) -> Examples:
        """The same split on another device."""
        return Examples(self.inputs.to(device), self.targets.to(device), self.sizes.to(device))

    @property
    def real(self) -> Tensor:
        """[users, n] mask of the examples that are data and not padding."""
        return torch.arange(self.targets.shape[1], device=self.sizes.device) < self.sizes[:, None]


@dataclass(frozen=True)
class Users:
    """The population of a federation: what every user holds, and which group it truly belongs to.

    ``classes`` is how many classes targets have; 0 where they are numbers. ``newcomers`` come when
    training is over, which never sees them.
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
    newcomers: Users | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return in_words(self)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.inputs.shape[2:])

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one example's target: () for a class or a number."""
        return tuple(self.train.targets.shape[2:])

    def split(self, name: Split) -> Examples:
        """One of the three splits by its name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def select(self, users: Iterable[int | str]) -> Users:
        """Some of the users, by number or name, in the order given."""
        places = [place_of(user, self.names) if isinstance(user, str) else user for user in users]
        index = torch.as_tensor(places, dtype=torch.int64)
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

    def label_counts(self) -> Tensor | None:
        """[users, classes]: how many training examples of each class every user has.

        None where examples have no class each.
        """
        if not self.classes or self.target_shape:
            return None
        marked = torch.where(self.train.real, self.train.targets, self.classes)
        counts = torch.zeros(len(self), self.classes + 1, dtype=torch.int64, device=marked.device)
        return counts.scatter_add(1, marked, torch.ones_like(marked))[:, : self.classes]

    def with_train(self, inputs: Tensor, targets: Tensor) -> Users:
        """The same users with other training examples, as many of each."""
        return replace(self, train=replace(self.train, inputs=inputs, targets=targets))

    def checksum(self) -> str:
        """SHA-256 of everything that training can see: equal users, equal checksum."""
        digest = hashlib.sha256()
        tensors = [self.ids, torch.tensor(self.classes)]
        tensors += [] if self.groups is None else [self.groups]
        for split in SPLITS:
            part = self.split(split)
            tensors += [part.inputs, part.targets, part.sizes]
        for tensor in tensors:
            array = np.ascontiguousarray(tensor.cpu().numpy())
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        if self.newcomers is not None:
            digest.update(self.newcomers.checksum().encode())
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
        """Users from one (inputs, targets) pair each: arrays, tensors or lists.

        Targets in whole numbers are classes, numbered from 0 (sequences of them may have
        positions that do not count, -100); texts and other labels become classes in their order,
        and ``class_names`` says which; floating-point targets are numbers.

        Args:
            train: One pair per user.
            validation: The same, to choose a round by.
            test: The same, to report.
            classes: How many there are, where the targets do not show it.
            groups: Every user's true group, where one is known.
            names: Every user's name; numbers, if none.
            source: Where the data is from, in words.
            held_out: Where neither ``validation`` nor ``test`` is given, this share (a fifth, if
                none) of every user's data is kept back and halved into the two (see
                :func:`ucfl.users.partition.hold_out`).
            seed: Decides which examples are kept back.

        Examples:
            >>> import numpy as np, ucfl
            >>> x, y = np.zeros((10, 4)), ["ill", "well"] * 5
            >>> ucfl.Users.from_arrays([(x, y), (x, y)], names=["anna", "ben"]).class_names
            ('ill', 'well')
        """
        names = numbered_names(len(train)) if names is None else checked_names(names)
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
        named = None if class_names is None else len(class_names)
        form = common_form(given, names, named if classes is None else classes)
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
            if share:
                say_who_has_no_validation(names, given["validation"])
        nothing = [(x[:0], y[:0]) for x, y in given["train"]]
        by_split = {split: given.get(split, nothing) for split in SPLITS}
        return cls(
            train=Examples.stack(by_split["train"], form),
            validation=Examples.stack(by_split["validation"], form),
            test=Examples.stack(by_split["test"], form),
            classes=form.classes,
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

        Args:
            frame: A row for each example.
            user: The column that names whose example it is.
            target: The column to learn.
            inputs: The columns that models see; all others, if none.
            **options: Those of :meth:`from_arrays`.

        Examples:
            >>> import pandas as pd, ucfl
            >>> rows = {"user": ["a"] * 10 + ["b"] * 10, "age": range(20), "label": [0, 1] * 10}
            >>> ucfl.Users.from_frame(pd.DataFrame(rows)).names
            ('a', 'b')
        """
        pairs, names = frame_pairs(frame, user, target, inputs)
        labels, called = [y for _, y in pairs], None
        if not {"classes", "validation", "test"} & set(options):  # those say how they are numbered
            labels, called = numbered(labels)
        pairs = [(x, y) for (x, _), y in zip(pairs, labels, strict=True)]
        users = cls.from_arrays(pairs, **{"names": names, "source": "a data frame", **options})
        return users if called is None else replace(users, class_names=called)

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
        numbers: bool = False,
        renumber: bool = True,
        held_out: float | None = None,
        seed: int = 0,
    ) -> Users:
        """Users from a folder with one ``.npz`` file each, or one ``.csv`` file each.

        A ``.csv`` file has a line of column names; the others but the target are the inputs. An
        ``.npz`` file holds ``x`` and ``y`` (held-out data is then split off), or ``x_train``,
        ``y_train`` and optionally the same for ``validation`` and ``test``; a scalar ``group``
        names the user's true group where one is known.

        Args:
            folder: The files' names are the users' names.
            target: The column to learn; if none, the one called target, label, class or y.
            numbers: Targets in whole numbers are amounts, and no classes.
            renumber: Whole-number labels of ``.csv`` files that are not 0, 1, 2 and so on become
                classes in their order, and ``class_names`` says which.
            held_out: The share to keep back, as in :meth:`from_arrays`.
            seed: Decides which examples are kept back.

        Examples:
            >>> import pathlib, ucfl
            >>> pathlib.Path("hospitals").mkdir()
            >>> for name in ("north", "south"):
            ...     lines = ["age,label"] + [f"{age},{age % 2}" for age in range(20, 40)]
            ...     _ = pathlib.Path(f"hospitals/{name}.csv").write_text("\\n".join(lines))
            >>> ucfl.Users.from_folder("hospitals").names
            ('north', 'south')
        """
        found = read_folder(Path(folder), target, numbers=numbers, renumber=renumber)
        users = cls.from_arrays(
            found.pairs["train"],
            found.pairs.get("validation"),
            found.pairs.get("test"),
            groups=found.groups,
            names=found.names,
            source=f"{len(found.names)} files of {Path(folder).name}",
            held_out=held_out,
            seed=seed,
        )
        return users if found.class_names is None else replace(users, class_names=found.class_names)


def _value(target: Any) -> Any:
    """One of a data set's targets, which may be a tensor."""
    return target.numpy() if isinstance(target, Tensor) else target


def say_who_has_no_validation(names: Sequence[str], pairs: Sequence[Pair]) -> None:
    """Tell a person whose validation data chooses no round."""
    if without := [name for name, (_, y) in zip(names, pairs, strict=True) if not len(y)]:
        warnings.warn(
            f"{listed(without)}: too few examples to keep any back for validation; such users have "
            "no say in which round is best.",
            UcflWarning,
            stacklevel=2,
        )


def _take(pair: Pair, index: NDArray[np.int64]) -> Pair:
    return pair[0][index], pair[1][index]
