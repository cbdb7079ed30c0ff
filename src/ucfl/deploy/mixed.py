"""What the server holds of everyone's models: one for each stream, and not one for each user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from ucfl.algorithms import Algorithm, State
from ucfl.collaboration import Mixing, MixingByPart
from ucfl.deploy.contents import record
from ucfl.deploy.protocol import Columns
from ucfl.federation import Federation
from ucfl.parts import Part

#: Names in the server's state of what is not the algorithm's: streams' models, first models.
STREAM, BEGIN = "stream/", "begin/"


def products(rule: Mixing | MixingByPart | None, size: int) -> list[tuple[Mixing, Part]]:
    """Each mixing matrix of a round with the columns that it mixes."""
    return [] if rule is None else rule.products(size)


def server_state(algorithm: Algorithm, fed: Federation, state: State) -> State:
    """The first state without users' models: these are θ⁰ but for some columns, which are kept."""
    size, initial = fed.rows.size, fed.rows.initial.to(fed.device)
    rows = {
        name: value
        for name, value in state.items()
        if name in algorithm.of_users and isinstance(value, Tensor) and value.shape[1:] == (size,)
    }
    theta = next(iter(rows.values()))
    for name, value in rows.items():
        assert torch.equal(value, theta), f"{name} does not start from the same model"
    apart = torch.nonzero((theta != initial).any(0))[:, 0].tolist()
    kept: dict[str, Any] = {k: v for k, v in state.items() if k not in rows}
    kept[BEGIN + "models"] = ",".join(sorted(rows))
    if apart:
        first, last = min(apart), max(apart) + 1
        kept |= {BEGIN + "theta": theta[:, first:last].clone(), BEGIN + "at": first}
    return kept


def seen(state: State) -> State:
    """The server's state as the algorithm knows it: models are named, but not here."""
    models = str(state[BEGIN + "models"]).split(",")
    return {**state, **{name: torch.zeros(0) for name in models}}


def begin_of(algorithm: Algorithm, state: State, user: int) -> tuple[dict[str, Any], ArrayRecord]:
    """What a user is sent of the first state: values, and its own rows."""
    values: dict[str, Any] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
    values[BEGIN + "models"] = str(values[BEGIN + "models"]).split(",")
    names = [*algorithm.of_users, BEGIN + "theta"]
    rows = {name: state[name] for name in names if name in state}
    own = {name: value[user][None] for name, value in rows.items() if isinstance(value, Tensor)}
    if BEGIN + "theta" in own and own[BEGIN + "theta"].isnan().any():  # of who came later
        del own[BEGIN + "theta"]
    return values, record(own)


def with_one_more(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
) -> State:
    """The state with a user who comes later; what it starts from is its stream's model."""
    fresh = dict(algorithm.joined(fed, state, ours, theirs))
    first = state.get(BEGIN + "theta")
    if isinstance(first, Tensor):
        nothing = first.new_full((1, first.shape[1]), torch.nan)
        fresh[BEGIN + "theta"] = torch.cat([first, nothing])
    return fresh


def after_round(
    state: State, rule: Mixing | MixingByPart | None, uploads: Mapping[int, Tensor], size: int
) -> State:
    """The state with what the streams send now; a stream with nobody keeps its model."""
    fresh = dict(state)
    found = products(rule, size)
    if not found or not uploads:
        return fresh
    m = len(found[0][0].labels)
    some = next(iter(uploads.values()))
    rows = some.new_zeros(m, size)
    for user, row in uploads.items():
        rows[user] = row
    for number, (mixing, part) in enumerate(found):
        models = mixing.broadcasts(part.of(rows))
        known = torch.ones(mixing.count, dtype=torch.bool)
        if mixing.silent is not None:
            known = ~mixing.silent
            old, had = (state.get(f"{STREAM}{number}{word}") for word in ("", "/known"))
            if isinstance(old, Tensor) and isinstance(had, Tensor):
                models = torch.where(known[:, None], models, old)
                known = known | had
        fresh[f"{STREAM}{number}"], fresh[f"{STREAM}{number}/known"] = models, known
    return fresh


class Broadcast:
    """What goes down after a round: one record for each stream, however many listen to it."""

    def __init__(self, state: State, rule: Mixing | MixingByPart | None, size: int) -> None:
        self._state = state
        self._products = products(rule, size)
        self._records: dict[str, ArrayRecord] = {}
        self.bytes = self.delivered = 0

    def to(self, user: int) -> tuple[list[Columns], dict[str, ArrayRecord]]:
        """Which columns a user gets, and the records that hold them."""
        columns, records = [], {}
        for name, stream, models, part in self._heard(user):
            if name not in self._records:
                self._records[name] = record({"columns": models[stream]})
                self.bytes += models[stream].numel() * models.element_size()
            self.delivered += models[stream].numel() * models.element_size()
            records[name] = self._records[name]
            columns.append(Columns(record=name, ranges=list(part.ranges)))
        return columns, records

    def _heard(self, user: int) -> Iterator[tuple[str, int, Tensor, Part]]:
        for number, (mixing, part) in enumerate(self._products):
            stream = int(mixing.labels[user])
            models = self._state.get(f"{STREAM}{number}")
            known = self._state.get(f"{STREAM}{number}/known")
            if isinstance(models, Tensor) and isinstance(known, Tensor) and bool(known[stream]):
                yield f"stream-{number}-{stream}", stream, models, part
