"""A run's history as a table: what notebooks read. It can be made from the checkpoint again."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ucfl.errors import unreadable
from ucfl.runs.checkpoint import Checkpoint
from ucfl.runs.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd  # slow to import, and only looked-at runs need it


def read_history(file: Path, users: int, metrics: Collection[str]) -> pd.DataFrame:
    """The table that :func:`write_history` wrote, with these metrics at least."""
    try:
        # In one go: a running trainer may put a newer file in its place at any time.
        table = pq.read_table(io.BytesIO(file.read_bytes()))
        # Version 0.1 stored no checksum.
        if (table.schema.metadata or {}).get(b"sha256", digest := _digest(table)) != digest:
            raise ValueError("its checksum does not fit its contents")
        history: pd.DataFrame = table.to_pandas()
        _check(history, users, metrics)
        return history
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        advice = "the run's own command with --resume writes it again."
        raise unreadable(file, error, advice) from error


def write_history(file: Path, checkpoint: Checkpoint) -> None:
    """Write the history of a checkpoint."""
    tables = []
    for metric, values in sorted(checkpoint.history.items()):
        rounds, users = values.shape
        columns = {
            "round": np.repeat(np.arange(rounds), users),
            "user": np.tile(np.arange(users), rounds),
            "metric": pa.array([metric] * values.numel()),
            "value": values.numpy().reshape(-1),
        }
        tables.append(pa.table(columns))
    table = pa.concat_tables(tables)
    table = table.replace_schema_metadata({"sha256": _digest(table)})
    contents = pa.BufferOutputStream()
    pq.write_table(table, contents)
    write_atomically(file, lambda path: path.write_bytes(contents.getvalue()))


def _check(history: pd.DataFrame, users: int, metrics: Collection[str]) -> None:
    """Raise ValueError unless there is one row for each metric, round and user."""
    for metric in {*metrics, *history["metric"]}:
        rows = history[history["metric"] == metric]
        place = np.sort(rows["round"].to_numpy() * users + rows["user"].to_numpy())
        whole = len(rows) and len(rows) % users == 0 and rows["user"].between(0, users - 1).all()
        if not whole or not np.array_equal(place, np.arange(len(rows))):
            raise ValueError("it has not one row for each round and user")


def _digest(table: pa.Table) -> bytes:
    """SHA-256 of a history's columns."""
    digest = hashlib.sha256()
    for name in ("round", "user", "value"):
        values = np.ascontiguousarray(table[name].to_numpy())
        digest.update(f"{name} {values.dtype}".encode() + values.tobytes())
    digest.update("\n".join(table["metric"].to_pylist()).encode())
    return digest.hexdigest().encode()
