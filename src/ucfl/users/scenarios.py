"""Named, complete settings: who the users are, what they train, and for how long."""

from __future__ import annotations

import reprlib
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ucfl.errors import UcflError, UcflWarning, check_name, first_line, unknown
from ucfl.users import datasets, partition, shifts
from ucfl.users.population import Pair, Users


class Scenario(BaseModel):
    """Everything that a run needs besides the algorithm and the seed.

    A scenario is data: print one with ``ucfl scenarios NAME``, change fields with ``--set``, or
    keep your own in a TOML file, which may start from another one with ``base = "NAME"``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "custom"
    description: str = ""

    dataset: str = Field("mnist5k", description="mnist5k, emnist, cifar10, or a folder of .npz")
    users: int = Field(20, ge=1, description="number of users m")
    points: int | None = Field(None, ge=1, description="examples drawn from the data set in all")
    split: Literal["iid", "dirichlet", "sizes"] = Field("iid", description="who gets which")
    alpha: float | None = Field(None, gt=0, description="Dirichlet parameter, per class")
    sizes: tuple[int, ...] | None = Field(None, description="examples of each user, split = sizes")
    held_out: float = Field(
        0.2, ge=0, lt=1, description="share kept back, halved into validation and test"
    )
    test_images: int | None = Field(
        None, ge=1, description="test on the data set's own first test images; validate on the next"
    )
    groups: int = Field(1, ge=1, description="true groups of users")
    rotations: tuple[float, ...] = Field((), description="degrees, one per group")
    permute_labels: bool = Field(False, description="each group has its own random labels")

    model: str = Field("lenet5", description="lenet5, vgg, mlp, logistic, or module:factory")
    initialisation: Literal["he-glorot", "own"] = Field(
        "he-glorot", description="own keeps what the model's constructor made"
    )
    lr: float = Field(0.1, gt=0, description="learning rate of local SGD")
    momentum: float = Field(0.9, ge=0, lt=1, description="starts from zero every round")
    batch: int = Field(64, ge=1, description="local batch size B")
    epochs: int = Field(1, ge=1, description="local epochs E")
    last_batch: Literal["drop", "scale", "keep"] = Field(
        "drop",
        description="a last batch that is not full: left out (a user with less than one batch "
        "keeps it), scaled by count / B, or kept as it is",
    )
    rounds: int = Field(100, ge=1, description="communication rounds T")
    variance_batch: float = Field(
        1 / 3, gt=0, description="n_k of eq. 9: a share of the user's data if below 1, else a count"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if self.split == "dirichlet" and self.alpha is None:
            raise ValueError("split 'dirichlet' needs alpha")
        if self.split == "sizes" and len(self.sizes or ()) != self.users:
            raise ValueError("split 'sizes' needs one size per user")
        if self.rotations and len(self.rotations) != self.groups:
            raise ValueError(f"{len(self.rotations)} rotations do not fit {self.groups} groups")
        if self.groups > self.users:
            raise ValueError(f"{self.groups} groups need at least as many users")
        return self

    def change(self, fields: Mapping[str, Any]) -> Scenario:
        """The same scenario with some fields changed."""
        for field in fields:
            check_name("scenario field", field, type(self).model_fields)
        return _checked({**self.model_dump(), **fields}, self.name)

    def build(self, seed: int = 0) -> Users:
        """Draw the users of this scenario: same seed, same users."""
        if _is_folder(self.dataset):
            return self._build_from_folder(seed)
        data = datasets.load(self.dataset)
        rng = np.random.default_rng(seed)
        chosen = _choose_points(len(data.labels), self, rng)
        labels = data.labels[chosen]
        if self.split == "dirichlet":
            assert self.alpha is not None
            parts = partition.dirichlet(labels, self.users, self.alpha, rng)
        elif self.split == "sizes":
            assert self.sizes is not None
            parts = partition.by_size(len(labels), self.sizes, rng)
        else:
            parts = partition.iid(len(labels), self.users, rng)

        groups = shifts.group_of_users(self.users, self.groups)
        relabel = shifts.label_permutations(data.classes, self.groups, rng)

        def seen_by(user: int, pair: Pair) -> Pair:
            """The pair as the user's group sees it."""
            inputs, answers = pair
            if self.rotations:
                inputs = shifts.rotate(inputs, self.rotations[groups[user]])
            if self.permute_labels:
                answers = relabel[groups[user]][answers]
            return inputs, answers

        splits: list[list[Pair]] = [[], [], []]
        for user, part in enumerate(parts):
            points = chosen[part]
            if self.test_images is None:
                held = partition.hold_out(len(points), self.held_out, rng)
                pairs = [(data.inputs[points[h]], data.labels[points[h]]) for h in held]
            else:
                pairs = [(data.inputs[points], data.labels[points]), *_own_tests(data, self)]
            for split, pair in zip(splits, pairs, strict=True):
                split.append(seen_by(user, pair))
        return Users.from_arrays(
            *splits,
            classes=data.classes,
            groups=groups if self.groups > 1 else None,
            source=data.source,
        )

    def _build_from_folder(self, seed: int) -> Users:
        """A folder's users are taken as they are: nothing may be asked of them."""
        fixed = ("points", "split", "alpha", "sizes", "test_images", "rotations", "permute_labels")
        for field in fixed:
            if getattr(self, field) != type(self).model_fields[field].default:
                raise UcflError(
                    f"the users of {self.dataset} are taken as they are, so {field!r} does not "
                    "apply; name the folder in place of the scenario."
                )
        return Users.from_folder(Path(self.dataset), held_out=self.held_out, seed=seed)


def _is_folder(dataset: str) -> bool:
    try:
        return dataset not in datasets.LOADERS and Path(dataset).is_dir()
    except OSError:  # too long for a name
        return False


def _choose_points(available: int, scenario: Scenario, rng: np.random.Generator) -> Any:
    wanted = scenario.points or available
    if wanted > available:
        warnings.warn(
            f"{scenario.dataset} holds {available:,} of the {wanted:,} points asked for; "
            "all of them are used.",
            UcflWarning,
            stacklevel=3,
        )
    return np.sort(rng.permutation(available)[:wanted])


def _own_tests(data: datasets.Dataset, scenario: Scenario) -> list[Pair]:
    """Validation and test pairs from the data set's own test images."""
    count = scenario.test_images or 0
    if data.test_inputs is None or data.test_labels is None:
        raise UcflError(
            f"{scenario.dataset} has no test images of its own; leave test_images out, and "
            "held_out decides."
        )
    if 2 * count > len(data.test_labels):
        raise UcflError(
            f"{count} test and {count} validation images are more than the "
            f"{len(data.test_labels)} that {scenario.dataset} has."
        )
    return [
        (data.test_inputs[part], data.test_labels[part])
        for part in (slice(count, 2 * count), slice(count))
    ]


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="rotated-mnist",
            description="MNIST-5k, four groups rotated by 0/90/180/270 degrees; no download",
            groups=4,
            rotations=(0, 90, 180, 270),
            lr=0.05,
            batch=10,
            rounds=30,
        ),
        Scenario(
            name="emnist-label-shift",
            description="EMNIST, each user its own mix of the 62 characters (paper, sec. V-A)",
            dataset="emnist",
            points=12_500,
            split="dirichlet",
            alpha=0.4,
            rounds=300,
            variance_batch=20,
        ),
        Scenario(
            name="emnist-covariate-shift",
            description="EMNIST, label shift and four groups of rotated images (paper, sec. V-A)",
            dataset="emnist",
            users=100,
            points=125_000,
            split="dirichlet",
            alpha=8,
            groups=4,
            rotations=(0, 90, 180, 270),
            rounds=300,
        ),
        Scenario(
            name="emnist-label-shift-100",
            description="EMNIST label shift with 100 users and ten times the data (sec. V-F)",
            dataset="emnist",
            users=100,
            points=125_000,
            split="dirichlet",
            alpha=0.4,
        ),
        Scenario(
            name="cifar10-concept-shift",
            description="CIFAR-10, four groups with permuted labels (paper, sec. V-A)",
            dataset="cifar10",
            test_images=1000,
            groups=4,
            permute_labels=True,
            lr=0.01,
            rounds=300,
        ),
        Scenario(
            name="cifar10-covariate-label-shift",
            description="CIFAR-10, label shift and four groups of rotated images (sec. V-E)",
            dataset="cifar10",
            split="dirichlet",
            alpha=8,
            groups=4,
            rotations=(0, 90, 180, 270),
            lr=0.01,
            rounds=300,
        ),
    )
}


def find(name: str) -> Scenario:
    """A scenario by its name, read from a TOML file, or made of a folder with one .npz per user."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    if name.endswith(".toml"):
        return _read(Path(name))
    if _is_folder(name):
        return Scenario(name=Path(name).resolve().name, dataset=name)
    raise unknown("scenario", name, SCENARIOS, "A .toml file or a folder of .npz files works too.")


def _read(file: Path, above: tuple[Path, ...] = ()) -> Scenario:
    """The scenario of a TOML file; ``above`` are the files that start from it."""
    try:
        fields = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UcflError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UcflError(f"{file} is not TOML: {first_line(error)}.") from error
    base = str(fields.pop("base", ""))
    if not base:
        start = Scenario()
    elif not base.endswith(".toml"):
        start = find(base)
    elif Path(base) in (file, *above):
        raise UcflError(f"{file} starts from itself; name another base.")
    else:
        start = _read(Path(base), (file, *above))
    return start.change({"name": file.stem, **fields})


def _checked(fields: Mapping[str, Any], name: str) -> Scenario:
    try:
        return Scenario.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        given = f" (got {reprlib.repr(first['input'])})" if where else ""
        raise UcflError(
            f"scenario {name!r}: {where + ': ' if where else ''}{message}{given}."
        ) from error
