"""Shakespeare's plays, a user for each role: what comes next in what it says, by character.

The texts are those of the Python package shakespeare (Project Gutenberg's editions). A speech is a
block of lines under the speaker's name; a role is a name in one play.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucfl.arrays import read_npz
from ucfl.errors import UcflError, unreadable
from ucfl.users.dataset import Dataset, Owners, missing

FILE = "shakespeare.npz"
SUFFIX = "_gut.txt"
PLAYS = (
    "alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors",
    "coriolanus", "cymbeline", "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v",
    "henry_vi_part_1", "henry_vi_part_2", "henry_vi_part_3", "henry_viii", "john",
    "julius_caesar", "lear", "loves_labours_lost", "macbeth", "measure_for_measure",
    "merchant_of_venice", "merry_wives_of_windsor", "midsummer_nights_dream",
    "much_ado_about_nothing", "othello", "pericles", "richard_ii", "richard_iii",
    "romeo_and_juliet", "taming_of_the_shrew", "tempest", "timon_of_athens",
    "tragedy_of_titus_andronicus", "troilus_and_cressida", "twelfth_night",
    "two_gentlemen_of_verona", "winters_tale",
)  # fmt: skip
#: What a text is made of; anything else is the last token.
ALPHABET = "\n !&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TOKENS = len(ALPHABET) + 1
#: Characters of an example, and the fewest of a role that is a user.
LENGTH, FEWEST = 80, 2000
ADVICE = "import shakespeare again."

#: A speaker's name stands alone on the first line of a block, with or without a full stop.
SPEAKER = re.compile(r"[A-Z][A-Za-z' -]{0,30}\.?")
#: Stage directions.
DIRECTION = re.compile(r"\[[^\]]*\]?")


@cache
def load(folder: Path) -> Dataset:
    """Examples of ``LENGTH`` characters in the order of the play; targets are the next ones."""
    file = folder / "shakespeare" / FILE
    if not file.exists():
        raise missing("shakespeare", file.parent)
    arrays = read_npz(file, ADVICE)
    try:
        texts = _checked(arrays)
    except (KeyError, ValueError) as error:
        raise unreadable(file, error, ADVICE) from error
    pairs = [_examples(text) for text in texts]
    counts = [len(inputs) for inputs, _ in pairs]
    of = np.repeat(np.arange(len(texts)), counts)
    names = tuple(str(name) for name in arrays["names"])
    return Dataset(
        np.concatenate([inputs for inputs, _ in pairs]),
        np.concatenate([targets for _, targets in pairs]),
        classes=TOKENS,
        source=f"Shakespeare's plays ({len(names)} roles, {len(arrays['text']):,} characters)",
        owners=Owners(names, of),
        series=of,
    )


def files_of(folder: Path) -> Callable[[Path], None]:
    """What writes the roles as plain numbers, of a folder with the texts of all plays."""
    found = {file.name: file for file in folder.rglob(f"*{SUFFIX}")}
    if absent := [play for play in PLAYS if f"{play}{SUFFIX}" not in found]:
        raise UcflError(
            f"{folder} lacks {absent[0]}{SUFFIX} and {len(absent) - 1} others of the "
            f"{len(PLAYS)} plays that the package shakespeare 0.6 has (shksprdata/texts)."
        )
    said: dict[str, str] = {}
    for play in PLAYS:
        file = found[f"{play}{SUFFIX}"]
        try:
            text = file.read_text(encoding="latin-1")
        except OSError as error:
            raise unreadable(file, error, "get the package shakespeare again.") from error
        said |= {f"{play}/{role}": words for role, words in roles(text).items()}
    kept = {name: words for name, words in said.items() if len(words) >= FEWEST}
    if not kept:
        raise UcflError(f"{folder} has no role with {FEWEST:,} characters; get the package again.")
    arrays = {
        "text": np.concatenate([tokens(words) for words in kept.values()]),
        "lengths": np.array([len(words) for words in kept.values()]),
        "names": np.array(list(kept)),
    }
    return lambda home: np.savez(home / FILE, allow_pickle=False, **arrays)


def roles(play: str) -> dict[str, str]:
    """All that each role of a play says, in its order; a speech ends with an end of line."""
    said: dict[str, list[str]] = {}
    for name, speech in _speeches(play):
        said.setdefault(name, []).append(speech + "\n")
    return {name: "".join(speeches) for name, speeches in said.items()}


def _speeches(play: str) -> Iterator[tuple[str, str]]:
    """Name and words of every speech; a block without a name on a line of its own is none."""
    text = DIRECTION.sub("", play.replace("\r\n", "\n"))
    for block in re.split(r"\n[ \t]*\n", text):
        head, *lines = block.strip("\n").split("\n")
        if lines and SPEAKER.fullmatch(head.strip()):
            words = "\n".join(" ".join(line.split()) for line in lines).strip()
            if words:
                yield head.strip().rstrip(".").upper(), words


def tokens(text: str) -> NDArray[np.uint8]:
    """Characters as places in the ``ALPHABET``."""
    places = {character: place for place, character in enumerate(ALPHABET)}
    return np.array([places.get(character, TOKENS - 1) for character in text], dtype=np.uint8)


def _examples(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count = (len(text) - 1) // LENGTH
    numbers = text[: count * LENGTH + 1].astype(np.int64)
    return numbers[:-1].reshape(count, LENGTH), numbers[1:].reshape(count, LENGTH)


def _checked(arrays: dict[str, NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """Every role's text, or ValueError."""
    text, lengths, names = arrays["text"], arrays["lengths"], arrays["names"]
    if text.dtype != np.uint8 or text.ndim != 1 or (len(text) and text.max() >= TOKENS):
        raise ValueError("its text is not made of tokens")
    if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or names.dtype.kind != "U":
        raise ValueError("its roles have no lengths or no names")
    if not len(lengths) or names.shape != lengths.shape or len(set(names.tolist())) != len(names):
        raise ValueError("its roles are not each named once")
    if lengths.min() <= LENGTH or lengths.sum() != len(text):
        raise ValueError("its roles are not as long as it says")
    return np.split(text, np.cumsum(lengths)[:-1])
