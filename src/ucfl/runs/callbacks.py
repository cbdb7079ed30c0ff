"""A person's functions, called after every round: they may log, add metrics, or stop the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ucfl.algorithms import Algorithm, State
from ucfl.errors import UcflError
from ucfl.federation import Federation
from ucfl.wireless import Traffic


class StopRun(Exception):  # noqa: N818 (a stop is no error)
    """Raised by a callback: the run ends with this round, as if it had been asked for no more."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class RoundInfo:
    """What a callback sees after round ``round`` of ``rounds``.

    ``history`` maps each metric to [round + 1, m] (round 0 is the untrained model), ``traffic`` is
    what the round sent, ``seconds`` what all rounds took so far.
    """

    algorithm: Algorithm
    fed: Federation
    folder: Path
    round: int
    rounds: int
    state: State
    history: Mapping[str, Tensor]
    traffic: Traffic
    seconds: float

    @property
    def label(self) -> str:
        """The algorithm with its hyper-parameters."""
        return self.algorithm.label

    @property
    def seed(self) -> int:
        """The run's."""
        return self.fed.seed

    @property
    def metrics(self) -> dict[str, Tensor]:
        """This round's values, one for each user."""
        return {name: values[-1] for name, values in self.history.items()}

    @property
    def models(self) -> Tensor:
        """Θ: the model that each user would deploy now."""
        return self.algorithm.models(self.state)


Callback = Callable[[RoundInfo], Mapping[str, float | Tensor] | None]


def call(callbacks: Sequence[Callback], info: RoundInfo) -> tuple[dict[str, Tensor], str]:
    """What the callbacks add to a round, [m] each, and the words of who stops the run (or none)."""
    added: dict[str, Tensor] = {}
    stopped = ""
    for callback in callbacks:
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        try:
            given = callback(info)
        except StopRun as stop:
            reason = f": {stop.reason.rstrip('.')}" if stop.reason else ""
            stopped = stopped or f"stopped after round {info.round} by the callback {name}{reason}"
            continue
        for metric, value in _checked(name, given).items():
            if metric in info.history or metric in added:
                raise UcflError(f"the callback {name} adds {metric!r}, which is there already.")
            added[metric] = _row(name, metric, value, info.fed.m)
    return added, stopped


def extended(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], added: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The history after a round with what callbacks add; NaN for rounds in which they did not."""
    rounds, users = next(iter(after.values())).shape
    history = dict(after)
    for name in sorted({**before, **added}):  # as files give them back
        if name not in after:
            gap = torch.full((rounds, users), torch.nan)
            rows = before.get(name, gap[:-1])
            history[name] = torch.cat([rows, added.get(name, gap[-1])[None]])
    return history


def _checked(name: str, given: object) -> Mapping[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UcflError(
            f"the callback {name} gives {type(given).__name__}: return nothing, or a mapping from "
            "names of metrics to a number, or to one number per user."
        )
    return given


def _row(name: str, metric: str, value: object, users: int) -> Tensor:
    """[m]: a number counts for every user."""
    try:
        row = torch.as_tensor(value, dtype=torch.float32).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        row = torch.empty(0)
    if row.shape not in ((), (users,)):
        raise UcflError(
            f"the callback {name} gives a {metric!r} that is neither a number nor one number for "
            f"each of the {users} users."
        )
    return row.expand(users).clone()
