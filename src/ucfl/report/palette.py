"""One colour per method, the same in every picture, told apart by colour-blind readers too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Colours on white and on near-black paper, after Okabe and Ito's and Paul Tol's palettes.
METHODS = {
    "user-centric": ("#0072b2", "#4fb3f0"),
    "fedavg": ("#d55e00", "#f58542"),
    "local": ("#008f68", "#3fcfa3"),
    "oracle": ("#565656", "#b9bec6"),
    "parallel-user-centric": ("#2f9bd8", "#8fd3ff"),
    "adaptive-user-centric": ("#332288", "#a394f0"),
    "layered-user-centric": ("#c2185b", "#ff7fae"),
    "fedprox": ("#c05a92", "#e79ac4"),
    "scaffold": ("#b57b00", "#f0b840"),
    "ditto": ("#882255", "#d878ab"),
    "pfedme": ("#117733", "#5fc97f"),
    "cfl": ("#84841f", "#cfcf5f"),
    "fedfomo": ("#aa4499", "#dd86cf"),
    "fedem": ("#24857a", "#6cd6c8"),
    "fedmoe": ("#8c6d1f", "#d8b863"),
    "fedper": ("#5d7f2b", "#a9cf6b"),
    "fedrep": ("#3f6f9f", "#8fb7e0"),
    "lg-fedavg": ("#6b4fa0", "#b9a3e8"),
    "fedbn": ("#a0522d", "#e3a57f"),
    "fedbabu": ("#2e6e4e", "#7fc7a3"),
    "apfl": ("#9b2d6f", "#e58bbd"),
    "fl-hc": ("#7a2a10", "#e08a6a"),
    "fedavg-finetune": ("#c04f60", "#f08f9d"),
}
#: Groups of users and streams, by number: other hues would be mistaken for methods.
GROUPS = (
    ("#4477aa", "#77aadd"),
    ("#ee8866", "#ee8866"),
    ("#228833", "#66cc77"),
    ("#aa3377", "#dd77aa"),
    ("#bbaa33", "#ddcc55"),
    ("#66ccee", "#99ddff"),
    ("#775544", "#bb9988"),
    ("#888888", "#aaaaaa"),
)
#: Line patterns, in points: the variants of one method differ by these.
DASHES: tuple[tuple[float, ...], ...] = (
    (), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2),
    (10, 3), (3, 4), (6, 2, 1.5, 2, 1.5, 2), (10, 2, 3, 2),
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How a method is drawn: its colour on light and on dark paper, and its dashes."""

    light: str
    dark: str
    dashes: tuple[float, ...]


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label of one picture.

    The method's name decides the colour; its variants (``user-centric:streams=4``) share it and
    differ by dashes. A label that is no method takes a colour that no other label has.
    """
    wanted = list(labels)
    names = {label: label.partition(":")[0] for label in wanted}
    free = [colours for name, colours in METHODS.items() if name not in names.values()]
    strangers = [label for label in wanted if names[label] not in METHODS]
    found: dict[str, Style] = {}
    variants: dict[str, int] = {}
    for label in wanted:
        if names[label] in METHODS:
            colours = METHODS[names[label]]
            turn = variants.get(names[label], 0)
            variants[names[label]] = turn + 1
        else:
            place, pool = strangers.index(label), free or list(METHODS.values())
            colours, turn = pool[place % len(pool)], place // len(pool)
        found[label] = Style(*colours, DASHES[turn % len(DASHES)])
    return found
