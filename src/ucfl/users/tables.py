"""Users from tables: a data frame with a column of users, or a folder with a CSV file for each."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from ucfl.errors import UcflError, UcflWarning, check_name, unknown, unreadable
from ucfl.users.conversion import as_array, has_gaps
from ucfl.users.form import MOST_CLASSES, Pair

#: What the column of a CSV file is called that is to be learnt, where nobody says: the first there.
TARGETS = ("target", "label", "class", "y")
#: How people name another one.
NAMING = (
    "--set target_column=COLUMN on the command line, --target-column COLUMN for ucfl deploy user, "
    "Users.from_folder(…, target=COLUMN) in Python"
)
ADVICE = "write it again: a line of column names, then a line for each example."
#: What pandas calls its index, in the file that it writes and in the table that it reads of it.
INDEX = ("", "Unnamed: 0")
#: Columns whose standard deviations differ by more than the first, or whose mean is further from 0
#: than so many of them, train badly: one learning rate serves all columns.
SCALES, AWAY = 100, 10


def frame_pairs(
    frame: Any, user: str, target: str, inputs: Sequence[str] | None = None
) -> tuple[list[Pair], list[str]]:
    """Each user's (inputs, labels) from a pandas DataFrame, or a table with the same habits.

    ``inputs`` are the columns that models see: all but the other two, if none are given.
    """
    columns = [str(column) for column in frame.columns]
    if not columns:
        raise UcflError("the table has no columns; give one with a row for each example.")
    chosen = [column for column in columns if column not in (user, target)]
    if inputs is not None:
        chosen = list(inputs)
    elif columns[0] in INDEX and _counts_rows([as_array(frame[columns[0]], "the first column")]):
        _say_without_index("the table")
        chosen = [column for column in chosen if column != columns[0]]
    for column in (user, target, *chosen):
        check_name("column", column, columns)
    if not chosen:
        raise UcflError("the table has no column beside the users' and the target's to learn from.")
    users = as_array(frame[user], f"column {user!r}")
    if has_gaps(users):
        raise UcflError(f"column {user!r} does not name the user of every row; fill it in.")
    x = np.stack([_numbers(frame[column], f"column {column!r}") for column in chosen], axis=1)
    y = as_array(frame[target], f"column {target!r}")
    if has_gaps(y):
        raise UcflError(f"column {target!r} has gaps; leave out examples without a label.")
    check_scales(x, chosen)
    # Texts and numbers in one column have no order.
    users = users if users.dtype.kind != "O" else np.array([str(user) for user in users])
    names, owner = np.unique(users, return_inverse=True)
    pairs = [(x[owner == i], y[owner == i]) for i in range(len(names))]
    return pairs, [str(name) for name in names.tolist()]


def read_csvs(files: Sequence[Path], target: str | None = None) -> list[dict[str, NDArray[Any]]]:
    """``x`` and ``y`` of each user's file; all files have the same columns."""
    tables = [_read(file) for file in files]
    columns = tables[0].column_names
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise UcflError(f"{files[0].name} has two columns {twice[0]!r}; give each its own name.")
    known = [name for name in TARGETS if name in columns]
    chosen = target or next(iter(known), None)
    if chosen is None:
        raise UcflError(
            f"{files[0].name} has no column {TARGETS[0]!r}, only {', '.join(columns)[:200]}; call "
            f"the column that is to be learnt {' or '.join(TARGETS)} in every file, or name it: "
            f"{NAMING}."
        )
    if target is None and len(known) > 1:
        _note(
            f"{files[0].name} has the columns {' and '.join(map(repr, known))}: {chosen!r} is "
            f"learnt, and the rest is input; to learn another one, name it ({NAMING}), and take "
            "out what must not be input."
        )
    if chosen not in columns:
        raise unknown(
            f"column of {files[0].name}", chosen, columns, "It was given as the one to learn."
        )
    for file, table in zip(files, tables, strict=True):
        _check_columns(file, table, files[0], columns)
    inputs = [name for name in columns if name != chosen]
    if columns[0] in INDEX and _counts_rows([as_array(table[0], "") for table in tables]):
        _say_without_index(files[0].name)
        inputs = [name for name in inputs if name != columns[0]]
    found = []
    for file, table in zip(files, tables, strict=True):
        parts = [_numbers(table[name], f"{file.name}: column {name!r}") for name in inputs]
        if not parts:
            raise UcflError(f"{file.name} has no column beside {chosen!r} to learn from.")
        labels = as_array(table[chosen], f"{file.name}: column {chosen!r}")
        if table[chosen].null_count or has_gaps(labels):
            raise UcflError(
                f"{file.name}: column {chosen!r} has gaps; leave out examples without a label."
            )
        found.append({"x": np.stack(parts, axis=1), "y": labels})
    check_scales(np.concatenate([one["x"] for one in found]), inputs)
    return found


def _check_columns(file: Path, table: pa.Table, first: Path, columns: Sequence[str]) -> None:
    """Raise unless a file has the columns of the first, and examples."""
    if table.column_names != list(columns):
        missing = [name for name in columns if name not in table.column_names]
        more = [name for name in table.column_names if name not in columns]
        apart = [f"it lacks {', '.join(map(repr, missing))}"] if missing else []
        apart += [f"it also has {', '.join(map(repr, more))}"] if more else []
        raise UcflError(
            f"{file.name} has other columns than {first.name} "
            f"({' and '.join(apart)[:200] or 'another order'}); give all users the same, in the "
            "same order."
        )
    if not table.num_rows:
        raise UcflError(
            f"{file.name} has no examples, only column names; add some, or take the file away."
        )


def numbered(labels: Sequence[NDArray[Any]]) -> tuple[list[NDArray[Any]], tuple[str, ...] | None]:
    """Whole-number labels of a table as classes 0, 1, 2 …, and what these are called.

    Those that are such already stay, without names (None), as do other kinds and what is too large
    to be a class.
    """
    if not labels or any(each.dtype.kind not in "iu" for each in labels):
        return list(labels), None
    found = np.unique(np.concatenate(labels))
    if found[-1] >= MOST_CLASSES or np.array_equal(found, np.arange(len(found))):
        return list(labels), None
    classes: list[NDArray[Any]] = [np.searchsorted(found, each) for each in labels]
    return classes, tuple(map(str, found.tolist()))


def check_scales(x: NDArray[np.float32], columns: Sequence[str]) -> None:
    """Say where columns of inputs have so different scales that training suffers."""
    with np.errstate(invalid="ignore", over="ignore"):  # infinite values are refused later
        spread, mean = x.std(0, dtype=np.float64), np.abs(x.mean(0, dtype=np.float64))
    real = np.flatnonzero((spread > 0) & np.isfinite(spread))
    if not len(real):
        return
    low, high = real[spread[real].argmin()], real[spread[real].argmax()]
    away = real[(mean[real] / spread[real]).argmax()]
    if spread[high] > SCALES * spread[low]:
        what = (
            f"column {columns[high]!r} has a standard deviation of {spread[high]:.3g}, column "
            f"{columns[low]!r} of {spread[low]:.3g}"
        )
    elif mean[away] > AWAY * spread[away]:
        what = (
            f"column {columns[away]!r} has a mean of {x[:, away].mean():.3g} and a standard "
            f"deviation of {spread[away]:.3g}"
        )
    else:
        return
    _note(
        f"{what}: models train badly on such scales; standardise the columns first (subtract a "
        "mean, divide by a standard deviation, the same for all users)."
    )


def _counts_rows(by_user: Sequence[NDArray[Any]]) -> bool:
    """Whether a first column is the row numbers that pandas writes: whole, and only rising."""
    return all(each.dtype.kind in "iu" and bool((np.diff(each) > 0).all()) for each in by_user)


def _say_without_index(where: str) -> None:
    _note(
        f"the first column of {where} has no name and counts rows, so it is left out; write files "
        "without it (pandas: to_csv(..., index=False)), or give it a name to learn from it."
    )


def _note(text: str) -> None:
    # From one place: what is read once for each seed is said once.
    warnings.warn(text, UcflWarning, stacklevel=2)


def _read(file: Path) -> pa.Table:
    try:
        contents = file.read_bytes()
        contents.decode()  # pyarrow would take other encodings' letters for bytes
        head = contents.partition(b"\n")[0]
        if b";" in head and b"," not in head:
            raise UcflError(
                f"{file.name} separates its columns by semicolons; write it with commas between "
                "columns, and points in numbers."
            )
        return csv.read_csv(
            io.BytesIO(contents),
            # Threads of its own may still run when Python ends, and abort the process.
            read_options=csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except UnicodeDecodeError as error:
        raise UcflError(f"{file} is not UTF-8; save it in that encoding.") from error
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error, ADVICE) from error


def _numbers(column: Any, what: str) -> NDArray[np.float32]:
    """A column of inputs; numbers in tables are quantities, never tokens."""
    values = as_array(column, what)
    if values.dtype.kind in "fiub":
        numbers = values
    elif texts := _texts(values):
        row, text = texts[0]
        if 2 * len(texts) < len(values):
            raise UcflError(
                f"{what} has the text {text[:80]!r} among numbers, in row {row + 1} of its "
                "examples; mend it, or leave that example out."
            )
        raise UcflError(
            f"{what} holds text, as {text[:80]!r}, and inputs are numbers: encode it, alike for "
            "all users (pandas.get_dummies makes a column of 0 and 1 for each word), or leave the "
            "column out."
        )
    else:  # numbers as texts, and gaps alone
        numbers = values.astype(np.float64)
    if numbers.dtype.kind == "f" and (gaps := np.isnan(numbers)).any():
        raise UcflError(
            f"{what} has gaps, the first in row {gaps.argmax() + 1} of its examples; fill them in, "
            "or leave the examples out."
        )
    return numbers.astype(np.float32)


def _texts(values: NDArray[Any]) -> list[tuple[int, str]]:
    """The values that are no numbers, by their rows; gaps are neither, and dates are texts."""
    values = values.astype(str) if values.dtype.kind in "mM" else values
    return [
        (row, str(value))
        for row, value in enumerate(values)
        if value is not None and not _is_number(value)
    ]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
