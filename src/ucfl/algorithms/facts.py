"""What readers of a run need to know of its algorithm, so that they do without its code."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ucfl.collaboration import Collaboration
from ucfl.federation import Federation
from ucfl.wireless import Audience


@dataclass(frozen=True)
class Facts:
    """What tables, reports and plans say of an algorithm; stored with every run.

    ``implementation`` is where the class is, as ``module:Class``; ``code`` a checksum of its source
    (empty where there is none, as for a class that was typed at a prompt).
    """

    name: str
    label: str
    tested_model: str
    implementation: str = ""
    hyper_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reference: str = ""
    cost: str = ""
    streams_can_be_chosen: bool = False
    code: str = ""


@dataclass(frozen=True, eq=False)
class Findings:
    """What an algorithm says of a state: stored beside it.

    ``audience`` says which broadcast each user listens to (None: everyone to all of them);
    ``collaboration`` who learns from whom (None: the method does not say).
    """

    audience: Audience | None = None
    collaboration: Collaboration | None = None

    def on_air(self, fed: Federation) -> Findings:
        """The same with streams as large as the federation's downlink makes them."""
        factor = fed.links.factor("downlink", fed.rows)
        heard = None if self.audience is None else self.audience.scaled(factor)
        return dataclasses.replace(self, audience=heard)

    def of_all(self, users: int, gathered: Callable[[Tensor], Tensor]) -> Findings:
        """The same where processes share the users, and each knows its own users' streams."""

        def every(each: Tensor | None) -> Tensor | None:
            return each if each is None or len(each) == users else gathered(each)

        heard, found = self.audience, self.collaboration
        if heard is not None:
            heard = heard.of_all(
                lambda labels: (
                    labels
                    if len(labels) == users
                    else gathered(torch.from_numpy(labels)).cpu().numpy()
                )
            )
        if found is not None:
            parts = tuple(
                dataclasses.replace(part, labels=every(part.labels)) for part in found.parts
            )
            found = dataclasses.replace(found, labels=every(found.labels), parts=parts)
        return Findings(heard, found)

    def check(self, users: int) -> None:
        """Raise ValueError unless it fits the number of users."""
        if self.collaboration is not None and not self.collaboration.fits(users):
            raise ValueError("its weights do not fit its users")
        heard = () if self.audience is None else self.audience.parts
        if any(labels.shape != (users,) for _, labels in heard):
            raise ValueError("its audience does not fit its users")


def implementation(kind: type) -> str:
    """Where a class is, as ``module:Class``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def hyper_parameters(algorithm: Any) -> dict[str, Any]:
    """The fields of a frozen dataclass as JSON can hold them; other values as they print."""
    return {name: _plain(value) for name, value in dataclasses.asdict(algorithm).items()}


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return str(value)


@lru_cache(maxsize=256)
def code(kind: type, base: type) -> str:
    """SHA-256 of the source of a class and of those that it inherits from, below ``base``."""
    inherited = [each for each in kind.__mro__ if issubclass(each, base) and each is not base]
    try:
        sources = [inspect.getsource(each) for each in inherited]
    except (OSError, TypeError):  # typed at a prompt
        return ""
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()
