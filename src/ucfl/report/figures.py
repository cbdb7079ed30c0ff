"""Figures for print: plain data in, a matplotlib figure of a journal's column width out.

Nothing here knows a run or a scenario: labels are text, values are arrays. ``save`` writes PDF, SVG
or PNG by the file's ending, with fonts embedded, and the same bytes for the same data.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucfl.errors import UcflError
from ucfl.report.palette import GROUPS, Style, styles
from ucfl.runs import Curve
from ucfl.runs.files import write_atomically
from ucfl.runs.folder import deviation

if TYPE_CHECKING:  # every command knows the figures' names; few draw, and matplotlib is slow
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

Floats = NDArray[np.float64]

#: The width of one column of an IEEE journal, in inches.
SINGLE = 3.5
#: The width of two columns of an IEEE journal, in inches.
DOUBLE = 7.16
SUFFIXES = (".pdf", ".svg", ".png")

#: Of every figure. (Any: matplotlib types the keys one by one.)
LOOK: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's default of Type 3
    "svg.fonttype": "path",  # letters as shapes: an SVG cannot lack a font then
    "svg.hashsalt": "ucfl",
}


def over_rounds(
    curves: Mapping[str, ArrayLike],
    *,
    ylabel: str = "mean test accuracy in %",
    title: str = "",
    width: float = SINGLE,
) -> Figure:
    """Lines over rounds from [seeds, rounds + 1] arrays: the mean, and a deviation either side."""
    every = {label: _seeds_by_points(values, label) for label, values in curves.items()}
    points = {label: (np.arange(values.shape[1]), values) for label, values in every.items()}
    return against(points, xlabel="round", ylabel=ylabel, title=title, width=width)


def against(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    xlabel: str,
    ylabel: str = "mean test accuracy in %",
    title: str = "",
    logarithmic: bool = False,
    width: float = SINGLE,
) -> Figure:
    """Lines over anything, from x [points] and values [seeds, points]: mean and deviation.

    Few points get markers, since a line alone would hide where something was measured.
    """
    with looks():
        figure, axes = canvas(width, title)
        for label, style in styles(curves).items():
            x, values = np.asarray(curves[label][0]), _seeds_by_points(curves[label][1], label)
            _line_with_spread(axes, x, values, label, style, marked=len(x) <= 12)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if logarithmic:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(_ticks(6))
            axes.margins(x=0.02)
        _legend(figure, axes, width)
    return figure


def over_time(
    curves: Mapping[str, Curve | tuple[ArrayLike, ArrayLike]],
    unit: str = "T_dl",
    *,
    target: float | None = None,
    until: float | None = None,
    ylabel: str = "mean test accuracy in %",
    title: str = "",
    width: float = SINGLE,
) -> Figure:
    """What stands at each time, from curves or (times, values).

    A step, not a slope: a round's model is there when the round ends and not before. Lines end
    where runs do; ``until`` ends the axis earlier.
    """
    pairs = {
        label: (one.times, one.mean) if isinstance(one, Curve) else one
        for label, one in curves.items()
    }
    with looks():
        figure, axes = canvas(width, title)
        for label, style in styles(curves).items():
            times, values = (np.asarray(part, dtype=np.float64) for part in pairs[label])
            axes.plot(
                times, values, label=label, color=style.light, drawstyle="steps-post",
                **_dashes(style),
            )  # fmt: skip
        if target is not None:
            axes.axhline(target, color="#999999", lw=0.7, zorder=1)
            axes.annotate(
                f"{target:.4g}", (1, target), xycoords=("axes fraction", "data"),
                xytext=(2, 0), textcoords="offset points", va="center", fontsize=6,
                color="#666666", annotation_clip=False,
            )  # fmt: skip
        axes.set(xlabel=f"time in {_unit(unit)}", ylabel=ylabel)
        ends = [float(np.asarray(times)[-1]) for times, _ in pairs.values()]
        axes.set_xlim(0, until or 1.02 * max(ends))
        _legend(figure, axes, width)
    return figure


def fronts(
    panels: Mapping[
        str, tuple[Mapping[str, tuple[ArrayLike, ArrayLike]], tuple[ArrayLike, ArrayLike]]
    ],
    *,
    ylabel: str = "mean test accuracy in %",
    title: str = "",
    width: float = DOUBLE,
) -> Figure:
    """A panel for each kind of cost, by its axis' label: every method's curve, and the best of all.

    A panel is ({label: (costs, values)}, (costs, values) of the Pareto front).
    """
    with looks():
        figure, _ = canvas(width, title)
        figure.clear()
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (xlabel, (curves, front)) in zip(every, panels.items(), strict=True):
            costs, values = (np.asarray(part, dtype=np.float64) for part in front)
            axes.plot(
                costs, values, label="best for the cost", color="#bbbbbb", lw=4, zorder=1,
                drawstyle="steps-post", solid_capstyle="butt",
            )  # fmt: skip
            for label, style in styles(curves).items():
                x, y = (np.asarray(part, dtype=np.float64) for part in curves[label])
                axes.plot(
                    x, y, label=label, color=style.light, drawstyle="steps-post", **_dashes(style)
                )
            axes.set(xlabel=xlabel)
            axes.set_xlim(left=0)
        every[0].set(ylabel=ylabel)
        _legend(figure, every[0], width)
    return figure


def bars(
    values: Mapping[str, ArrayLike],
    *,
    xlabel: str,
    title: str = "",
    width: float = SINGLE,
) -> Figure:
    """A bar per label from one value or one per seed: the mean, its deviation, its number.

    An infinite value has no bar and says *never*.
    """
    every = {label: np.atleast_1d(np.asarray(v, dtype=float)) for label, v in values.items()}
    with looks():
        height = 0.62 + 0.2 * len(every)
        figure, axes = canvas(width, title, height)
        for place, (label, style) in enumerate(styles(every).items()):
            mean, spread = float(every[label].mean()), _finite_deviation(every[label])
            finite = math.isfinite(mean)
            hatch = "///" if style.dashes else None
            axes.barh(
                place, mean if finite else 0, 0.66, color=style.light, hatch=hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            if finite and spread:
                axes.errorbar(mean, place, xerr=spread, color="#333333", lw=0.8, capsize=1.5)
            said = f"{mean:.1f}" if finite else "never"
            axes.annotate(
                said, (mean + spread if finite else 0, place), xytext=(3, 0),
                textcoords="offset points", va="center", fontsize=6.5,
            )  # fmt: skip
        axes.set_yticks(range(len(every)), list(every))
        axes.invert_yaxis()
        axes.set(xlabel=xlabel)
        axes.margins(x=0.14)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure


def heat_map(
    weights: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    title: str = "",
    width: float = SINGLE,
) -> Figure:
    """W with users ordered by their stream, streams framed; a strip shows the true groups.

    Users are told by their ``names``, or their numbers.
    """
    from matplotlib.patches import Rectangle

    matrix = np.asarray(weights, dtype=np.float64)
    users = len(matrix)
    streams = np.zeros(users, dtype=int) if labels is None else np.asarray(labels, dtype=int)
    order = np.argsort(streams, kind="stable")
    ends = np.cumsum(np.bincount(streams)) - 0.5
    with looks(grid=False):
        figure, axes = canvas(width, title, 0.84 * width)
        image = axes.imshow(matrix[np.ix_(order, order)], cmap="Blues", vmin=0)
        start = -0.5
        for end in ends:
            side = end - start
            frame = Rectangle((start, start), side, side, fill=False, ec="#d55e00", lw=1.0)
            axes.add_patch(frame)
            start = end
        if groups is not None:
            numbers = np.unique(np.asarray(groups), return_inverse=True)[1]
            for place, user in enumerate(order):
                colour = GROUPS[numbers[user] % len(GROUPS)][0]
                axes.add_patch(
                    Rectangle(
                        (-0.045, place - 0.5), 0.03, 1, transform=axes.get_yaxis_transform(),
                        color=colour, lw=0, clip_on=False,
                    )
                )  # fmt: skip
            axes.tick_params(axis="y", pad=7)
        places = range(0, users, max(1, math.ceil(users / 10)))
        said = [str(i) if names is None else _cut(names[i]) for i in order[:: places.step]]
        axes.set_xticks(places, said, parse_math=False)
        axes.set_yticks(places, said, parse_math=False)
        if names is not None:
            for tick in axes.get_xticklabels():
                tick.set(rotation=45, ha="right", rotation_mode="anchor")
        axes.set(xlabel="learns from user $j$", ylabel="user $i$, by stream")
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="weight $w_{ij}$", shrink=0.8, pad=0.03)
    return figure


def _cut(name: str) -> str:
    """A name that fits beside an axis."""
    return name if len(name) <= 12 else f"{name[:11]}…"


def silhouettes(
    scores: Mapping[str, Mapping[int, ArrayLike]],
    recommended: int | Mapping[str, int] | None = None,
    *,
    title: str = "",
    width: float = SINGLE,
) -> Figure:
    """Silhouette against k from one value or one per seed; the recommended k has a ring."""
    picks = dict.fromkeys(scores, recommended) if isinstance(recommended, int) else recommended
    with looks():
        figure, axes = canvas(width, title)
        for label, style in styles(scores).items():
            ks = sorted(scores[label])
            values = np.stack([np.atleast_1d(np.asarray(scores[label][k], float)) for k in ks], 1)
            _line_with_spread(axes, np.array(ks), values, label, style, marked=len(ks) <= 40)
            k = (picks or {}).get(label)
            if k in ks:
                height = float(values[:, ks.index(k)].mean())
                axes.plot(k, height, "o", ms=8, mfc="none", mec=style.light, mew=1.2)
                axes.annotate(
                    f"$k$ = {k}", (k, height), xytext=(6, 4), textcoords="offset points",
                    color=style.light, fontsize=6.5,
                )  # fmt: skip
        axes.set(xlabel="number of streams $k$", ylabel="silhouette")
        axes.xaxis.set_major_locator(_ticks(8, integer=True))
        axes.margins(y=0.12)
        _legend(figure, axes, width)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write PDF, SVG or PNG by the ending; the picture keeps its size to the hair."""
    file = check_suffix(Path(path))
    undated: Any = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
    picture = io.BytesIO()  # on a full disk, matplotlib's own errors say nothing
    with looks():
        figure.savefig(picture, format=file.suffix[1:], metadata=undated[file.suffix])
    write_atomically(file, lambda path: path.write_bytes(picture.getvalue()))
    return file


def check_suffix(file: Path) -> Path:
    """The file, if its ending is one that figures are written with."""
    if file.suffix not in SUFFIXES:
        raise UcflError(f"figures are written as {', '.join(SUFFIXES)}, not {file.suffix!r}.")
    return file


def looks(*, grid: bool = True) -> AbstractContextManager[None]:
    """Inside, matplotlib draws and writes with :data:`LOOK`."""
    import matplotlib as mpl

    return mpl.rc_context({**LOOK, "axes.grid": grid})


def canvas(width: float, title: str, height: float | None = None) -> tuple[Figure, Axes]:
    """A figure without pyplot, which would keep it for ever."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height or 0.68 * min(width, 4.2)), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    return figure, axes


def _line_with_spread(
    axes: Axes, x: NDArray[Any], values: Floats, label: str, style: Style, *, marked: bool
) -> None:
    mean = values.mean(0)
    marker: dict[str, Any] = {"marker": "o", "ms": 3} if marked else {}
    axes.plot(x, mean, label=label, color=style.light, **_dashes(style), **marker)
    if len(values) > 1:
        spread = deviation(values)  # and no farther than a seed went: no accuracy is below zero
        low = np.maximum(mean - spread, values.min(0))
        high = np.minimum(mean + spread, values.max(0))
        axes.fill_between(x, low, high, color=style.light, alpha=0.15, lw=0)


def _ticks(most: int, *, integer: bool = False) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, integer=integer)


def _legend(figure: Figure, axes: Axes, width: float) -> None:
    """Above the axes, where it covers no curve."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=1)
    columns = max(1, min(len(labels), int(width / (0.5 + 0.052 * longest))))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.2)


def _dashes(style: Style) -> dict[str, Any]:
    return {"dashes": style.dashes} if style.dashes else {}


def _seeds_by_points(values: ArrayLike, label: str) -> Floats:
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.size == 0:
        raise UcflError(f"{label}: a curve is an array of seeds by points, not {table.shape}.")
    return table


def _finite_deviation(values: Floats) -> float:
    return float(deviation(values)) if np.isfinite(values).all() else 0.0


def _unit(unit: str) -> str:
    return "$T_{dl}$" if unit == "T_dl" else unit
