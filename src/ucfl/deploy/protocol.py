"""What server and users say to each other: five questions, each with one answer.

``join``: who are you, and what have you? ``collaborate``: what the algorithm measures before the
first round. ``round``: finish round t − 1 with what the server mixed, evaluate it, and begin round
t. ``end``: training is over. ``refused``: this user does not take part, and why.

A round is one exchange: what comes down is the result of the round before, so evaluating that and
training from it are the same message's work.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from ucfl.deploy.contents import Refused
from ucfl.users import Split
from ucfl.users.form import MOST_CLASSES

#: Changes when a server and a user of another version would misunderstand each other.
PROTOCOL = 1
JOIN, COLLABORATE, ROUND, END = "query.join", "query.collaborate", "train", "query.end"
REFUSED = "query.refused"

#: Names of records: θ⁰, a user's rows of the first state, what it sends, measures, and evaluates.
INITIAL, BEGIN, UPLOAD, MEASURED, METRICS = "initial", "begin", "upload", "measured", "metrics"

#: Numbers in one input or target at most: the server builds a model for what a user claims.
MOST_NUMBERS = 10**7

Count = Annotated[int, Field(ge=0, le=10**9)]
Shape = Annotated[list[Count], Field(max_length=8)]
Text = Annotated[str, Field(max_length=200)]


class Said(BaseModel):
    """Plain values of a message; whatever else it holds is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


S = TypeVar("S", bound=Said)


class Held(Said):
    """The newest state that a user keeps, and of which run."""

    run: Text
    round: Count


class Joined(Said):
    """What a user tells of itself."""

    protocol: int
    name: Text
    versions: dict[Text, Text]
    sizes: dict[Split, Count]
    classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)]
    input_shape: Shape
    input_type: Literal["uint8", "float32", "int64"]
    target_shape: Shape
    target_type: Literal["int64", "float32"]
    checksum: Text
    held: Held | None

    @model_validator(mode="after")
    def _of_a_size_that_fits(self) -> Self:
        if max(math.prod(self.input_shape), math.prod(self.target_shape)) > MOST_NUMBERS:
            raise ValueError(f"an example has more than {MOST_NUMBERS:,} numbers")
        return self


class Settings(Said):
    """What decides a user's numbers; the same for everyone but for ``user``, its place."""

    run: Text
    scenario: dict[str, Any]
    algorithm: Text
    seed: Annotated[int, Field(ge=0)]
    user: Count
    classes: Count
    tensors: dict[str, list[Count]]
    initial: Text


class Columns(Said):
    """Where in a row of Θ a record's numbers belong."""

    record: Text
    ranges: list[tuple[Count, Count]]


class Turn(Said):
    """The question of a round: finish ``previous``, then begin ``round`` (None: that was all).

    ``present``: whether the user's upload counted in the previous round. ``begin``: values of the
    first state, for who has none.
    """

    settings: Settings
    previous: Count
    present: bool
    round: Count | None
    columns: list[Columns]
    begin: dict[str, Any] | None = None


#: What a user's seconds are of; the last two are of its processor.
Work = Literal[
    "measuring", "finishing", "evaluating", "training", "training_processor", "processor"
]


class Refusal(Said):
    """Why a user does not take part; the server does not ask it again while it stays connected."""

    why: Text


class Answer(Said):
    """The answer to a round: what is missing, or that training diverged, or nothing to add."""

    needs: Literal["state", "initial"] | None = None
    diverged: bool = False
    seconds: dict[Work, Annotated[FiniteFloat, Field(ge=0)]] = {}


def said(kind: type[S], values: dict[str, Any]) -> S:
    """A message's values, checked."""
    try:
        # From JSON, since strict validation takes tuples from there only.
        return kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:60]
        raise Refused(f"its values do not fit: {where}: {first['msg'][:100]}") from error
