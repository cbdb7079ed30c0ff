"""The critical-difference diagram (Demšar, JMLR 2006, fig. 1): average ranks, and who differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ucfl.errors import UcflError
from ucfl.report.figures import DOUBLE, SINGLE, canvas, looks
from ucfl.report.palette import styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches: of a label's line, of a bar's, and of a letter of a label.
_LINE, _BAR, _LETTER = 0.125, 0.055, 0.053
#: Inches that an axis has at least in a single column, and its ticks between them; and how many
#: methods a single column takes.
_AXIS, _TICK, _FEW = 1.1, 0.18, 12


def critical_difference(
    average: Mapping[str, float],
    difference: float,
    alike: Sequence[Sequence[str]] = (),
    *,
    title: str = "",
    width: float | None = None,
) -> Figure:
    """Average ranks on an axis, 1 to the left; a bar joins methods that do not differ.

    The better half of the methods is named to the left, the rest to the right, a line each, so
    names never meet however near the ranks are. Without a ``width``, it is one column where the
    names leave enough of it, or else two.
    """
    if len(average) < 2:
        raise UcflError("a critical-difference diagram compares two methods or more.")
    names = sorted(average, key=lambda name: average[name])
    left, right = names[: math.ceil(len(names) / 2)], names[math.ceil(len(names) / 2) :]
    lines, bars = len(left), len(alike)
    depth = 0.12 + _BAR * bars  # inches from the axis to the first label
    height = 0.62 + depth + _LINE * lines
    side = [_LETTER * max(map(len, each)) + 0.32 for each in (left, right)]
    if width is None:
        width = SINGLE if len(names) <= _FEW and SINGLE - sum(side) >= _AXIS else DOUBLE
    with looks(grid=False):
        figure, axes = canvas(width, title, height)
        first, last = 1, max(math.ceil(max(average.values())), 2)
        inch = (last - first) / max(width - sum(side), 0.3)  # ranks in an inch of the axis
        axes.set_xlim(first - side[0] * inch, last + side[1] * inch)
        axes.set_ylim(depth + _LINE * lines, -0.42)  # in inches, downwards
        axes.set_axis_off()
        _scale(axes, first, last, difference, inch)
        for number, group in enumerate(alike):
            ends = [average[name] for name in group]
            y = 0.09 + _BAR * number
            reach = 0.04 * inch
            axes.plot(
                [min(ends) - reach, max(ends) + reach], [y, y], color="#333333", lw=2,
                solid_capstyle="butt", label="_bar",
            )  # fmt: skip
        colours = styles(names)
        for each, towards in ((left, -1), (right, 1)):
            ordered = each if towards < 0 else each[::-1]
            edge = first - 0.1 * inch if towards < 0 else last + 0.1 * inch
            for number, name in enumerate(ordered):
                y = depth + _LINE * (number + 0.5)
                axes.plot(
                    [average[name], average[name], edge], [0, y, y],
                    color=colours[name].light, lw=0.7, label="_leader",
                )  # fmt: skip
                words = (name, f"{average[name]:.2f}")
                axes.annotate(
                    "  ".join(words if towards < 0 else words[::-1]),
                    (edge, y), xytext=(2 * towards, 0), textcoords="offset points",
                    ha="right" if towards < 0 else "left", va="center", fontsize=6,
                    color=colours[name].light, parse_math=False,
                )  # fmt: skip
    return figure


def _scale(axes: Axes, first: int, last: int, difference: float, inch: float) -> None:
    """The axis with its ticks, and the critical difference above it."""
    axes.plot([first, last], [0, 0], color="black", lw=0.8)
    step = max(1, math.ceil(_TICK * inch))
    for rank in range(first, last + 1, step):
        axes.plot([rank, rank], [0, -0.05], color="black", lw=0.8)
        axes.annotate(
            str(rank), (rank, -0.05), xytext=(0, 1.5), textcoords="offset points", ha="center",
            va="bottom", fontsize=6,
        )  # fmt: skip
    axes.plot([first, first + difference], [-0.25, -0.25], color="black", lw=1)
    for end in (first, first + difference):
        axes.plot([end, end], [-0.28, -0.22], color="black", lw=1)
    axes.annotate(
        f"critical difference {difference:.2f}", (first + difference / 2, -0.28), xytext=(0, 2),
        textcoords="offset points", ha="center", va="bottom", fontsize=6,
    )  # fmt: skip
