"""Users from tables: a data frame with a column of users, or a folder with a CSV file for each."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from ucfl.errors import UcflError, check_name, unreadable
from ucfl.users.conversion import as_array, has_gaps
from ucfl.users.form import Pair

#: What the column of a CSV file is called that is to be learnt, where nobody says: the first there.
TARGETS = ("target", "label", "class", "y")
ADVICE = "write it again: a line of column names, then a line for each example."


def frame_pairs(
    frame: Any, user: str, target: str, inputs: Sequence[str] | None = None
) -> tuple[list[Pair], list[str]]:
    """Each user's (inputs, labels) from a pandas DataFrame, or a table with the same habits.

    ``inputs`` are the columns that models see: all but the other two, if none are given.
    """
    columns = [str(column) for column in frame.columns]
    chosen = [column for column in columns if column not in (user, target)]
    chosen = chosen if inputs is None else list(inputs)
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
    names, owner = np.unique(users, return_inverse=True)
    pairs = [(x[owner == i], y[owner == i]) for i in range(len(names))]
    return pairs, [str(name) for name in names.tolist()]


def read_csvs(files: Sequence[Path], target: str | None = None) -> list[dict[str, NDArray[Any]]]:
    """``x`` and ``y`` of each user's file; all files have the same columns."""
    tables = [_read(file) for file in files]
    columns = tables[0].column_names
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise UcflError(f"{files[0].name} has two columns {twice[0]!r}; give each its own name.")
    chosen = target or next((name for name in TARGETS if name in columns), None)
    if chosen is None or chosen not in columns:
        raise UcflError(
            f"{files[0].name} has no column {chosen or TARGETS[0]!r}, only "
            f"{', '.join(columns)[:200]}; call the column that is to be learnt "
            f"{' or '.join(TARGETS)}."
        )
    found = []
    for file, table in zip(files, tables, strict=True):
        if table.column_names != columns:
            raise UcflError(
                f"{file.name} has other columns than {files[0].name}; give all users the same, in "
                "the same order."
            )
        inputs = [name for name in columns if name != chosen]
        parts = [_numbers(table[name], f"{file.name}: column {name!r}") for name in inputs]
        if not parts:
            raise UcflError(f"{file.name} has no column beside {chosen!r} to learn from.")
        labels = as_array(table[chosen], f"{file.name}: column {chosen!r}")
        if table[chosen].null_count or has_gaps(labels):
            raise UcflError(
                f"{file.name}: column {chosen!r} has gaps; leave out examples without a label."
            )
        found.append({"x": np.stack(parts, axis=1), "y": labels})
    return found


def _read(file: Path) -> pa.Table:
    try:
        contents = file.read_bytes()
        contents.decode()  # pyarrow would take other encodings' letters for bytes
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
    if values.dtype.kind not in "fiub":
        raise UcflError(
            f"{what} holds {values.dtype} and no numbers; turn it into numbers, or leave it out."
        )
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise UcflError(f"{what} has gaps; fill them in, or leave the examples out.")
    return values.astype(np.float32)
