"""A scenario: who the users are, what they train, and for how long."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from ucfl.errors import UcflError, unknown
from ucfl.options import (
    BatchSize,
    Count,
    Momentum,
    NotNegative,
    Passes,
    Positive,
    VarianceBatch,
    check_seed,
    reason,
)
from ucfl.users.drawing import draw
from ucfl.users.effects import BELONGS_TO, HOW_USERS_ARE_MADE, is_folder, without_effect
from ucfl.users.given import OWN, ModelSource, model_name
from ucfl.users.participation import Participation
from ucfl.users.partition import FEWEST
from ucfl.users.population import HELD_OUT, Users
from ucfl.users.tables import TARGETS

#: What other libraries call our fields, where the words are not alike.
ELSEWHERE = {
    "learning_rate": "lr",
    "eta": "lr",
    "batch_size": "batch",
    "optimizer": "optimiser",
    "num_clients": "users",
    "clients": "users",
    "communication_rounds": "rounds",
    "num_rounds": "rounds",
    "loss": "objective",
    "data": "dataset",
}


def unknown_field(field: str, known: Collection[str]) -> UcflError:
    """The error for a field that a scenario does not have, with the one that may be meant."""
    if field in ELSEWHERE:
        return UcflError(f"unknown scenario field {field!r}; did you mean {ELSEWHERE[field]!r}?")
    return unknown("scenario field", field, known)


class Scenario(BaseModel):
    """Everything that a run needs besides the algorithm and the seed.

    A scenario is data: print one with ``ucfl scenarios NAME``, change fields with ``--set``, or
    keep your own in a TOML file, which may start from another one with ``base = "NAME"``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = "custom"
    description: str = ""

    dataset: str = Field(
        "mnist5k",
        description="mnist5k, emnist, cifar10, fashion-mnist, qmnist, watch, shakespeare, or a "
        "folder of .npz or .csv",
    )
    users: Annotated[int, Field(le=1_000_000)] = Field(20, ge=1, description="number of users m")
    points: Count | None = Field(None, description="examples drawn from the data set in all")
    split: Literal["iid", "dirichlet", "sizes", "classes", "lognormal", "natural"] = Field(
        "iid", description="who gets which (docs/scenarios.md)"
    )
    alpha: Positive | None = Field(None, description="Dirichlet parameter, per class")
    sizes: tuple[Count, ...] | None = Field(
        None, description="examples of each user, split = sizes"
    )
    classes_per_user: Count | None = Field(
        None, description="how many classes every user has, split = classes"
    )
    sigma: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="of the logarithm of users' sizes, split = lognormal"
    )
    fewest: Count = Field(
        FEWEST, description="people with fewer examples are left out, split = natural"
    )
    held_out: Annotated[float, Field(ge=0, lt=1)] = Field(
        HELD_OUT, description="share kept back, halved into validation and test"
    )
    target_column: str | None = Field(
        None,
        description="the column to learn of a folder's .csv files; if none, the one called "
        f"{', '.join(TARGETS)}",
    )
    test_images: Count | None = Field(
        None, description="test on the data set's own first test images; validate on the next"
    )
    groups: Annotated[int, Field(ge=1, le=1_000_000)] = Field(1, description="true groups of users")
    rotations: tuple[Annotated[float, Field(ge=-360, le=360)], ...] = Field(
        (), description="degrees, one per group"
    )
    group_shares: tuple[Positive, ...] = Field(
        (), description="users of each group, in proportion; if none, as many in each"
    )
    permute_pixels: bool = Field(
        False, description="each group sees images through its own random permutation of pixels"
    )
    permute_labels: bool | Literal["conflicting"] = Field(
        False,
        description="each group has its own random labels; conflicting: two groups agree on none",
    )

    model: ModelSource = Field(
        "lenet5",
        description="lenet5, vgg, cnn-512, cnn-2048, cnn1d, mlp, logistic, character-lstm, "
        "character-transformer, or module:factory",
    )
    initialisation: Literal["he-glorot", "own"] | None = Field(
        None,
        description="own keeps what the model's constructor made; if none, own for your own model "
        "and he-glorot for ours",
    )
    objective: str = Field(
        "classification",
        description="classification, regression, regression:loss=absolute, next-token, or "
        "module:name of your own",
    )
    optimiser: Literal["sgd", "nesterov", "adam", "adamw"] = Field(
        "sgd", description="of local training, as PyTorch's of the same name"
    )
    optimiser_state: Literal["reset", "keep"] = Field(
        "reset", description="velocities and moments: anew every round, or kept by each user"
    )
    lr: Positive = Field(0.1, description="learning rate of local training")
    momentum: Momentum = Field(0.9, description="of sgd and nesterov")
    weight_decay: NotNegative = Field(0.0, description="λ of λ/2 ‖θ‖², or decoupled with adamw")
    schedule: str = Field(
        "constant",
        description="of the rate over rounds: constant, steps:at=100+150:factor=0.1, cosine; each "
        "with :warmup=5",
    )
    batch: BatchSize = Field(64, description="local batch size B")
    epochs: Passes = Field(1, description="local epochs E")
    last_batch: Literal["drop", "scale", "keep"] = Field(
        "drop",
        description="a last batch that is not full: left out (a user with less than one batch "
        "keeps it), scaled by count / B, or kept as it is",
    )
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        100, description="communication rounds T"
    )
    participation: float | str = Field(
        1.0,
        description="who takes part in a round: a share of the users, '10 users'; ':by=size' draws "
        "by their data, ':trace=FILE.csv' from those available",
    )
    newcomers: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of the users that training never sees: they come when it is over",
    )
    deadline: Positive | None = Field(
        None,
        description="the longest that a round may take, in the system's unit; late users drop out",
    )
    system: str | None = Field(
        None, description="the network that a deadline is for, as slow-uplink or urban-micro:seed=1"
    )
    uplink: str = Field(
        "none",
        description="how users' messages are compressed: none, quantise:bits=8, top-k:share=0.05, "
        "sketch:share=0.1 (docs/compression.md)",
    )
    downlink: str = Field("none", description="how broadcasts are compressed, in the same words")
    variance_batch: VarianceBatch = Field(
        1 / 3, description="n_k of eq. 9: a share of the user's data if below 1, else a count"
    )

    @field_validator("model", mode="before")
    @classmethod
    def _makes_a_model(cls, value: Any) -> Any:
        if not isinstance(value, str) and not callable(value):
            raise ValueError("a model is a name, a torch.nn.Module, or a function that makes one")
        return value

    @field_validator("permute_labels", mode="wrap")
    @classmethod
    def _permutes(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise ValueError("write true, false or 'conflicting'") from None

    @field_validator("participation", mode="before")
    @classmethod
    def _participates(cls, value: Any) -> Any:
        """A number where it is one, whether typed or read from a file."""
        try:
            Participation.of(value)
        except UcflError as error:
            raise ValueError(str(error).rstrip(".")) from error
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if self.split == "dirichlet" and self.alpha is None:
            raise ValueError("split 'dirichlet' needs alpha")
        if self.split == "sizes" and len(self.sizes or ()) != self.users:
            raise ValueError("split 'sizes' needs one size per user")
        if self.split == "classes" and self.classes_per_user is None:
            raise ValueError("split 'classes' needs classes_per_user")
        if self.split == "lognormal" and self.sigma is None:
            raise ValueError("split 'lognormal' needs sigma")
        if self.group_shares and len(self.group_shares) != self.groups:
            raise ValueError(
                f"{len(self.group_shares)} group_shares do not fit {self.groups} groups"
            )
        if self.rotations and len(self.rotations) != self.groups:
            raise ValueError(f"{len(self.rotations)} rotations do not fit {self.groups} groups")
        if self.deadline is not None and self.system is None:
            raise ValueError(
                "a deadline needs the network whose time it is in, as system = 'slow-uplink' (ucfl "
                "systems lists them)"
            )
        if self.groups > self.users and self.split != "natural":
            raise ValueError(f"{self.groups} groups need at least as many users")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_sentence(cls, fields: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return check(fields)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "extra_forbidden":
                raise unknown_field(str(first["loc"][-1]), cls.model_fields) from error
            where = ".".join(map(str, first["loc"]))
            why, value = reason(error), reprlib.repr(first["input"])
            given = f" (got {value})" if where and f"not {value}" not in why else ""
            name = fields.get("name", "custom") if isinstance(fields, Mapping) else "custom"
            raise UcflError(
                f"scenario {name!r}: {where + ': ' if where else ''}{why}{given}."
            ) from error

    @property
    def model_name(self) -> str:
        """The model in words, also where it was given as an object."""
        return model_name(self.model)

    @property
    def targets_are_numbers(self) -> bool:
        """Whether targets in whole numbers are amounts, and no classes."""
        return self.objective.partition(":")[0] == "regression"

    @property
    def in_words(self) -> Scenario:
        """The scenario as it can be stored."""
        return self if isinstance(self.model, str) else self.change({"model": self.model_name})

    def change(self, fields: Mapping[str, Any]) -> Scenario:
        """The same scenario with some fields changed.

        What belongs to a value that is changed goes with it: alpha, if the split is no longer the
        one that has it. A change without effect is refused.
        """
        for field in fields:
            if field not in type(self).model_fields:
                raise unknown_field(field, type(self).model_fields)
        replaced = {field for field in fields if fields[field] != getattr(self, field)}
        kept = {
            field: value
            for field, value in self.model_dump().items()
            if BELONGS_TO.get(field) not in replaced
        }
        changed = type(self).model_validate({**kept, **fields})
        for field, why in changed.without_effect().items():
            if field in fields:
                raise UcflError(why)
        return changed

    def without_effect(self) -> dict[str, str]:
        """Fields that decide nothing here, and a sentence about each."""
        return without_effect(self)

    def serving(self, users: Users, *, given: bool) -> Scenario:
        """The scenario with what is true of the users that it serves.

        They are its own, or were ``given``: then no field may be set that would make others.
        """
        if not given and not is_folder(self.dataset) and self.split != "natural":
            return self
        groups = 1 if users.groups is None else len(users.groups.unique())
        true: dict[str, Any] = {"users": len(users), "groups": groups}
        true |= {"dataset": f"{OWN}{users.source}"} if given else {}
        for field in (*true, *(HOW_USERS_ARE_MADE if given else ())):
            if self._is_set(field) and getattr(self, field) != true.get(field):
                raise UcflError(
                    f"scenario {self.name!r}: the users are there already, so {field!r} has no "
                    "effect; leave it out of the scenario."
                )
        return type(self).model_validate({**self.model_dump(), **true})

    def _is_set(self, field: str) -> bool:
        """Whether a field has another value than its default."""
        return bool(getattr(self, field) != type(self).model_fields[field].default)

    def build(self, seed: int = 0) -> Users:
        """Draw the users of this scenario: same seed, same users."""
        check_seed(seed)
        for field, why in self.without_effect().items():
            there_already = field == "users" and self.split == "natural"  # their number may be true
            if self._is_set(field) and not there_already:
                raise UcflError(f"scenario {self.name!r}: {why}")
        if is_folder(self.dataset):
            held_out = None if self.held_out == HELD_OUT else self.held_out
            users = Users.from_folder(
                Path(self.dataset),
                target=self.target_column,
                held_out=held_out,
                numbers=self.targets_are_numbers,
                seed=seed,
            )
            self.serving(users, given=False)  # what it says of their groups must be true
            return users
        if self.dataset.startswith(OWN):
            raise UcflError(
                f"the users of scenario {self.name!r} were given by hand ({self.dataset}); give "
                "them again, as users=."
            )
        users = draw(self, seed)
        self.serving(users, given=False)
        return users
