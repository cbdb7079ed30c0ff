"""The two links between users and server: what arrives of a round's messages, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from ucfl.errors import UcflError
from ucfl.federation.compression import Compression, Whole, compression
from ucfl.federation.draws import counter_hash
from ucfl.federation.rows import Rows
from ucfl.parts import Part

Link = Literal["uplink", "downlink"]
LINKS: tuple[Link, Link] = ("uplink", "downlink")
#: What keeps these draws apart from others of the same seed and round.
KEY = -31
#: Numbers that are compressed at a time: what is drawn for them takes some times their memory.
AT_ONCE = 2**22


class Streams(Protocol):
    """What a link must know of a mixing matrix: who listens to which stream, and how many go."""

    @property
    def labels(self) -> Tensor:
        """[rows]: the stream of each row."""

    @property
    def silent(self) -> Tensor | None:
        """[k]: streams that carry nothing in this round (None: there are none)."""

    @property
    def sent(self) -> int:
        """How many streams are broadcast."""


class Mixed(Protocol):
    """A mixing matrix, or several for parts of the model."""

    def products(self, size: int) -> Sequence[tuple[Streams, Part]]:
        """Each matrix with all of its columns, of ``size``."""

    def __matmul__(self, theta: Tensor) -> Tensor:
        """WΘ."""


@dataclass(frozen=True)
class Links:
    """How messages are compressed on the way up and on the way down."""

    uplink: Compression = field(default_factory=Whole)
    downlink: Compression = field(default_factory=Whole)

    @classmethod
    def of(cls, uplink: str, downlink: str) -> Links:
        """By the compressions' names, as a scenario has them."""
        return cls(compression(uplink), compression(downlink))

    def compresses(self, link: Link) -> bool:
        """Whether anything is done to a link's messages."""
        return not isinstance(getattr(self, link), Whole)

    def factor(self, link: Link, rows: Rows) -> float:
        """What a whole model takes on a link, in models as they are."""
        if not self.compresses(link):
            return 1.0
        return Message.of(Part.joined("", [(0, rows.size)], rows.size), rows).bytes(
            getattr(self, link)
        ) / max(1, rows.bytes)

    @property
    def words(self) -> str:
        """What is done to messages, as a sentence; nothing where nothing is."""
        said = [
            f"on the {link} {getattr(self, link).words}" for link in LINKS if self.compresses(link)
        ]
        return f"What is sent is {' and '.join(said)}." if said else ""


@dataclass(frozen=True)
class Message:
    """The columns of a message: ``lengths`` of its trained tensors, then ``raw`` other numbers.

    Buffers and frozen parameters (``raw``) are sent as they are: a variance that is off by a
    quantisation step may be negative.
    """

    part: Part
    lengths: tuple[int, ...]
    raw: int
    number: int

    @classmethod
    def of(cls, part: Part, rows: Rows) -> Message:
        """The message that carries a part of a model."""
        lengths = tuple(
            length for piece in rows.slots if (length := (part & piece & rows.trained).count)
        )
        return cls(part, lengths, part.count - sum(lengths), rows.dtype.itemsize)

    def bytes(self, how: Compression) -> int:
        """What it takes."""
        return how.bytes(self.lengths, self.number) + self.raw * self.number


@dataclass
class Wire:
    """The links of one round: what they remember, and what was sent.

    A round is a pure function of the state before it, so its caller owns this, as it owns
    :class:`Memory`: ``before`` maps ``uplink/i`` and ``downlink/i`` to what the round's i-th
    message has lost so far, sender by sender; ``after`` has the same when the round is over. None:
    nobody remembers, and compression is refused. ``numbers`` and ``bytes`` count a link's traffic:
    on the uplink of one user, on the downlink of all broadcasts.
    """

    links: Links = field(default_factory=Links)
    seed: int = 0
    round: int = 0
    before: Mapping[str, Tensor] | None = None
    after: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[Link, int] = field(default_factory=lambda: {"uplink": 0, "downlink": 0})
    bytes: dict[Link, int] = field(default_factory=lambda: {"uplink": 0, "downlink": 0})
    messages: dict[Link, int] = field(default_factory=lambda: {"uplink": 0, "downlink": 0})

    @classmethod
    def of(cls, links: Links, seed: int, t: int, state: Mapping[str, object]) -> Wire:
        """That of round t, with what the state before it remembers."""
        before = {
            name: value
            for name, value in state.items()
            if name.startswith(tuple(f"{link}/" for link in LINKS)) and isinstance(value, Tensor)
        }
        return cls(links, seed, t, before, dict(before))

    def up(
        self, rows: Tensor, since: Tensor, message: Message, ids: Tensor, here: Tensor | None
    ) -> Tensor:
        """Rows as the server has them, of the users ``here`` (None: all); ``ids`` are all users'.

        Absent users send nothing, and owe what they owed.
        """
        _check_columns(rows, message.part)
        name = self._next("uplink", message, 1)
        lost = self._lost(name, message, rows)
        own, had, names, owed = (_at(each, here) for each in (rows, since, ids, lost))
        arrived, left = self._arrived(name, own, had, message, names, owed)
        if lost is not None and left is not None:
            self.after[name] = left if here is None else lost.index_copy(0, here, left)
        arrived = message.part.put(own, arrived)
        return arrived if here is None else rows.index_copy(0, here, arrived)

    def down(self, mixed: Tensor, since: Tensor, message: Message, streams: Streams) -> Tensor:
        """Mixed rows as those who listen to the streams have them.

        A stream is one message to all of its listeners, absent ones too, as in the product itself;
        who keeps its own row, because its stream is silent, hears nothing.
        """
        _check_columns(mixed, message.part)
        name = self._next("downlink", message, streams.sent)
        lost = self._lost(name, message, mixed)
        heard = torch.ones_like(streams.labels, dtype=torch.bool)
        if streams.silent is not None:
            heard = ~streams.silent[streams.labels]
        listeners = torch.nonzero(heard)[:, 0]
        labels, place = streams.labels[listeners].unique(return_inverse=True)
        first = listeners[_first(place, len(labels))]
        _check_alike(since, listeners, first[place], message.part)
        arrived, left = self._arrived(
            name, mixed[first], since[first], message, labels, _at(lost, first)
        )
        if lost is not None and left is not None:
            self.after[name] = lost.index_copy(0, listeners, left[place])
        columns = message.part.of(mixed).index_copy(0, listeners, arrived[place])
        return message.part.put(mixed, columns)

    def _next(self, link: Link, message: Message, copies: int) -> str:
        """The name of the round's next message on a link, which is counted."""
        if self.before is None:
            raise UcflError(
                "what is lost of compressed messages is remembered by a run: train with ucfl.run, "
                "or leave uplink and downlink at none."
            )
        self.numbers[link] += copies * message.part.count
        self.bytes[link] += copies * message.bytes(getattr(self.links, link))
        self.messages[link] += 1
        return f"{link}/{self.messages[link] - 1}"

    def _lost(self, name: str, message: Message, rows: Tensor) -> Tensor | None:
        """[rows, columns]: what senders still owe, where their link remembers it."""
        if not self._how(name).remembers:
            return None
        assert self.before is not None
        return self.before.get(name, rows.new_zeros(len(rows), sum(message.lengths)))

    def _how(self, name: str) -> Compression:
        return self.links.uplink if name.startswith("uplink/") else self.links.downlink

    def _arrived(
        self,
        name: str,
        rows: Tensor,
        since: Tensor,
        message: Message,
        senders: Tensor,
        lost: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The message's columns of rows as they arrive, and what their senders owe then.

        Rows that are not finite arrive as they are: divergence must be seen.
        """
        link, number = name.split("/")
        how, cut = self._how(name), sum(message.lengths)
        keys = counter_hash(
            self.seed, self.round, senders, KEY, LINKS.index(cast(Link, link)), int(number)
        )
        own, had = (message.part.of(each) for each in (rows, since))
        found, left = own.clone(), None if lost is None else lost.clone()
        for some in _blocks(len(own), max(1, cut)):
            before = had[some, :cut]
            sent = own[some, :cut] - before
            sent = sent if lost is None else sent + lost[some]
            got = how.received(sent, message.lengths, keys[some])
            finite = sent.isfinite().all(1, keepdim=True)
            found[some, :cut] = torch.where(finite, before + got, own[some, :cut])
            if lost is not None and left is not None:
                left[some] = torch.where(finite, sent - got, lost[some])
        return found, left

    def check(self, name: str, down: float, up: float, size: int) -> None:
        """Raise unless all that a round declares, in models, went through its compressed links."""
        for link, declared in zip(LINKS, (up, down), strict=True):
            sent = self.numbers[link] / size
            if self.links.compresses(link) and not math.isclose(sent, declared, rel_tol=1e-9):
                raise UcflError(
                    f"{name} sends {declared:g} models on the {link} in a round, of which {sent:g} "
                    "go through Federation.exchange, so they cannot be compressed: leave "
                    f"{link} at none, or choose another method."
                )


def _at(rows: Any, places: Tensor | None) -> Any:
    """Some of the rows, where there are any (places None: all)."""
    return rows if rows is None or places is None else rows[places]


def _first(place: Tensor, count: int) -> Tensor:
    """[count]: where each number from 0 on is first found."""
    order = torch.arange(len(place), device=place.device)
    return place.new_full((count,), len(place)).scatter_reduce(0, place, order, "amin")


def _blocks(count: int, width: int) -> Iterator[slice]:
    """Rows in blocks of bounded size."""
    step = max(1, AT_ONCE // width)
    return (slice(start, start + step) for start in range(0, count, step))


def _check_columns(rows: Tensor, part: Part) -> None:
    if rows.shape[1] != part.size:
        raise UcflError(
            f"rows of {rows.shape[1]} numbers are no models of {part.size} parameters, so how they "
            "are compressed is not known; exchange models, or what has their columns."
        )


def _check_alike(since: Tensor, listeners: Tensor, first: Tensor, part: Part) -> None:
    """Raise unless listeners had what the first one of their stream had, but for rounding."""
    had, common = part.of(since[listeners]), part.of(since[first])
    if not torch.allclose(had, common, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise UcflError(
            "listeners of one stream had different models before, so that one compressed change "
            "does not fit all of them: leave downlink at none, or choose another method."
        )
