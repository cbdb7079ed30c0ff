"""What the stored files must hold. Each has a ``format``; those of version 0.1 have none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

#: Of files that are written now.
FORMAT = 2

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


class Stored(BaseModel):
    """A part of a stored file; what a later version adds is left alone."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class StoredTraffic(Stored):
    """Of :class:`ucfl.wireless.Traffic`."""

    model_config = ConfigDict(extra="ignore")

    down: Amount
    up: Amount
    work: Amount = 1.0


class StoredUsers(Stored):
    """Who the users were."""

    names: list[str] = Field(min_length=1)
    source: str
    groups: list[Count] | None = None
    label_counts: list[list[Count]] | None = None
    test_sizes: list[Count] | None = None
    validation_sizes: list[Count] | None = None
    class_names: list[str] | None = None

    @model_validator(mode="after")
    def _one_each(self) -> StoredUsers:
        for what in (
            self.groups,
            self.label_counts,
            self.test_sizes,
            self.validation_sizes,
        ):
            if what is not None and len(what) != len(self.names):
                raise ValueError("not as many entries as users")
        return self


class StoredConfiguration(Stored):
    """What decides a run's numbers."""

    scenario: dict[str, Any]
    algorithm: str
    seed: Count
    data: str
    model: str


class StoredMetric(Stored):
    """Of :class:`ucfl.measure.Measure`."""

    model_config = ConfigDict(extra="ignore")

    name: str
    more_is_better: bool
    percent: bool


class StoredFacts(Stored):
    """Of :class:`ucfl.algorithms.Facts`."""

    model_config = ConfigDict(extra="ignore")

    name: str
    label: str
    tested_model: str
    implementation: str = ""
    hyper_parameters: dict[str, Any] = {}
    reference: str = ""
    cost: str = ""
    streams_can_be_chosen: bool = False
    code: str = ""


class StoredRun(Stored):
    """``run.json``."""

    format: Literal[1, 2] = 1
    configuration: StoredConfiguration
    scenario: dict[str, Any]
    algorithm: str
    algorithm_facts: StoredFacts | None = None
    seed: Count
    start_traffic: StoredTraffic
    users: StoredUsers
    metrics: Annotated[list[StoredMetric], Field(min_length=1)] | None = None
    parameters: Count
    model_bytes: Count
    input_shape: list[Count] | None = None
    input_type: Literal["uint8", "float32", "int64"] | None = None
    outputs: Count | None = None
    tensors: dict[str, list[Count]] | None = None
    processes: Annotated[int, Field(ge=1)] = 1
    machine: dict[str, Any]
    versions: dict[str, str]
    command: list[str]
    sessions: list[dict[str, Any]] = []
    probe: list[FiniteFloat] | None = None


class StoredPart(Stored):
    """The part of :class:`ucfl.collaboration.MixedPart` that is not tensors."""

    model_config = ConfigDict(extra="ignore")

    name: str
    share: Amount
    streams: Count


class StoredCollaboration(Stored):
    """The part of :class:`ucfl.collaboration.Collaboration` that is not tensors."""

    spread: float | None = None  # NaN for a user alone
    parts: list[StoredPart] = []


class StoredFindings(Stored):
    """The part of :class:`ucfl.algorithms.Findings` that is not tensors."""

    audience: list[Amount] | None = None
    collaboration: StoredCollaboration | None = None


class StoredPoint(Stored):
    """The part of a checkpoint that is not tensors."""

    format: Literal[1, 2] = 1
    round: Count
    seconds: Amount
    values: dict[str, bool | int | float | str]
    dropped: dict[str, Count] = {}
    findings: StoredFindings | None = None
    stopped: str = ""


class StoredCell(Stored):
    """The part of a cell that is not arrays."""

    format: Literal[1, 2] = 1
    scenario: dict[str, Any]
    algorithm: str
    seed: Count
    tested_model: str
    best_round: Count
    seconds: Amount
    start_traffic: StoredTraffic
    users: Annotated[int, Field(ge=1, le=1_000_000)]
    model_bytes: Count
    data: str
    device: str
    executor: str | None = None  # cells once did not say it
    versions: dict[str, str]
    hyper_parameters: dict[str, Any] = {}
    newcomers: dict[str, dict[str, float | None]] | None = None  # None: NaN
    dropped: Count = 0


def validated(kind: type[Stored], values: Any) -> dict[str, Any]:
    """The values, if they are what the file must hold; else a ValueError of one line."""
    try:
        found = kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else str(first["msg"])) from error
    return found.model_dump(exclude_unset=True)


def checked(kind: type[Stored], values: Any) -> dict[str, Any]:
    """The same for a file that holds a checksum over all of its values, as those of format 2 do."""
    found = validated(kind, values)
    signed = found.get("format", 1) != 1 or "sha256" in found
    if signed and found.get("sha256") != json_digest(values):
        raise ValueError("its checksum does not fit its contents")
    return found


def json_digest(values: Mapping[str, Any]) -> str:
    """SHA-256 of values that JSON can hold, but for a checksum among them."""
    rest = {key: value for key, value in values.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def parts_digest(about: str, parts: Iterable[tuple[str, Any]]) -> str:
    """SHA-256 of a file's text and its arrays: each one's name, type and shape, and its bytes."""
    digest = hashlib.sha256(about.encode())
    for name, contents in parts:
        digest.update(name.encode())
        digest.update(contents)
    return digest.hexdigest()
