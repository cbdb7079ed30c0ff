"""Run the cells that are not there yet, keep each as it finishes, and say how long it will take."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from ucfl import algorithms
from ucfl.errors import Diverged, UcflError
from ucfl.federation import Federation
from ucfl.paper.cells import Cell, Entry, Store
from ucfl.paper.items import work
from ucfl.runs import Progress, Record, Run, Stopped, federation
from ucfl.runs.building import Engine, find_device, populated
from ucfl.runs.claim import Unusable
from ucfl.runs.files import remove_unfinished
from ucfl.runs.lock import Busy, held
from ucfl.runs.loop import OnNote
from ucfl.runs.progress import OnRound
from ucfl.runs.provenance import device_name
from ucfl.runs.starting import train
from ucfl.users import Scenario, Users

#: Results by entry, in order of their seeds: what tables, claims and figures are made from.
Measured = Mapping[Entry, Sequence[Record]]

#: How much of a cell is lost at most when its process is killed outright.
CHECKPOINT_SECONDS = 20.0


@dataclass(frozen=True)
class Survey:
    """Which cells are there, which are to do, and how long each will take, where that is known."""

    cells: tuple[Cell, ...]
    done: Mapping[Cell, Record]
    seconds: Mapping[Cell, float | None]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the cells."""
        return sorted({cell.seed for cell in self.cells})

    @property
    def to_do(self) -> list[Cell]:
        """The cells that are not there, in order."""
        return [cell for cell in self.cells if cell not in self.done]

    def of(self, cells: Sequence[Cell]) -> Survey:
        """The same of some of the cells."""
        kept = set(cells)
        done = {cell: result for cell, result in self.done.items() if cell in kept}
        return Survey(tuple(cells), done, self.seconds)

    @property
    def measured(self) -> Measured:
        """The finished cells by entry."""
        found: dict[Entry, list[Record]] = {}
        for cell in sorted(self.done, key=lambda cell: cell.seed):
            found.setdefault(cell.entry, []).append(self.done[cell])
        return found

    @property
    def forecast(self) -> str:
        """What a person should know before it starts."""
        said = f"{len(self.done)} of {len(self.cells)} cells are there"
        if not (missing := self.to_do):
            return said + "."
        known = [seconds for cell in missing if (seconds := self.seconds[cell]) is not None]
        said += f", {len(missing)} to do"
        if known:
            said += f"; {len(known)} of them will take about {duration(sum(known))}"
        if len(known) < len(missing):
            said += f"; nothing finished tells how long {len(missing) - len(known)} will take"
        return said + "."

    def to_json(self) -> dict[str, Any]:
        """Every cell: whether it is there, and the seconds that it took or will take."""
        rows = [
            {
                "cell": cell.name,
                "done": cell in self.done,
                "seconds": self.done[cell].seconds if cell in self.done else self.seconds[cell],
            }
            for cell in self.cells
        ]
        return {"forecast": self.forecast, "cells": rows}


def survey(
    cells: Sequence[Cell], store: Store, device: str = "auto", on_note: OnNote | None = None
) -> Survey:
    """What the store holds of the cells; a damaged one is said to be, and is to do."""
    done: dict[Cell, Record] = {}
    for cell in cells:
        try:
            result = store.load(cell)
        except UcflError as error:
            if on_note:
                on_note(f"{str(error).partition(';')[0]}; it is run again.")
            continue
        if result is not None:
            done[cell] = result
    here = device_name(find_device(device))
    finished = [result for result in done.values() if result.origin.machine["device"] == here]
    missing = [cell for cell in cells if cell not in done]
    return Survey(tuple(cells), done, {cell: _expected(cell, finished) for cell in missing})


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    limit_seconds: float | None = None,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_cell: Callable[[Cell], None] | None = None,
    **engine: Unpack[Engine],
) -> bool:
    """Run the cells in order and keep each as it finishes; False if the time ran out before.

    At the limit the cell at work stops after its round, is kept, and goes on next time; so does
    one that Ctrl-C stops. A cell that another process works on is left to it, so several processes
    share the cells. One in which nobody's training lasts is remarked on, and the others go on.
    Cells of one scenario and seed share their federation.
    """
    ends = None if limit_seconds is None else time.monotonic() + limit_seconds

    def show(progress: Progress) -> None:
        if on_round:
            on_round(progress)
        if _is_over(ends):
            raise KeyboardInterrupt

    _clear_up(store)
    standing: _Standing | None = None
    for cell in cells:
        if _is_over(ends):
            return False
        if on_cell:
            on_cell(cell)
        try:
            with held(store.file(cell), on_note):
                if not _is_there(cell, store):
                    if standing is None or not standing.serves(cell):
                        standing = None  # frees the device before the next takes its place
                        standing = _Standing.of(cell, engine)
                    store.save(cell, _trained(cell, standing, store, show, on_note).record)
                remove_unfinished(store.file(cell).parent, store.file(cell).name)
                shutil.rmtree(store.unfinished(cell), ignore_errors=True)
        except Busy as busy:
            if on_note:
                on_note(f"{str(busy).partition(';')[0]}; it is left to that process.")
        except Diverged as diverged:
            if on_note:
                on_note(f"{diverged} The cell {cell.name} is left out, and the others go on.")
        except Stopped:
            if _is_over(ends):
                return False
            raise
    return True


def _clear_up(store: Store) -> None:
    """Remove the runs of cells that are kept, whose processes ended between the two."""
    cells, unfinished = store.folder / "cells", store.folder / "unfinished"
    names = {lock.name[1 : -len(".npz.lock")] for lock in cells.glob(".*.npz.lock")}
    names |= {run.name for run in unfinished.glob("*") if store.is_kept(run.name)}
    for name in sorted(names):
        # Where another process has the cell, or nothing can be written, the run stays.
        with contextlib.suppress(UcflError), held(cells / f"{name}.npz"):
            if store.is_kept(name):
                shutil.rmtree(unfinished / name, ignore_errors=True)


def _is_there(cell: Cell, store: Store) -> bool:
    """Whether the cell is stored, by another process since it was looked for; a damaged one not."""
    try:
        return store.load(cell) is not None
    except UcflError:
        return False


@dataclass(frozen=True)
class _Standing:
    """The federation at work: its scenario, whatever the rounds, and all its users."""

    scenario: Scenario
    fed: Federation
    users: Users

    @classmethod
    def of(cls, cell: Cell, engine: Engine) -> _Standing:
        scenario = cell.entry.scenario
        _, users = populated(scenario, cell.seed, None)
        return cls(scenario, federation(scenario, cell.seed, users=users, **engine), users)

    def serves(self, cell: Cell) -> bool:
        same = cell.entry.scenario.change({"rounds": self.scenario.rounds}) == self.scenario
        return same and cell.seed == self.fed.seed


def _trained(
    cell: Cell, standing: _Standing, store: Store, on_round: OnRound, on_note: OnNote | None
) -> Run:
    """The cell's run, continued where there is something to continue."""
    folder, algorithm = store.unfinished(cell), algorithms.find(cell.entry.algorithm)

    def attempt(fresh: bool) -> Run:
        return train(
            cell.entry.scenario,
            algorithm,
            standing.fed,
            standing.users,
            out=folder,
            resume=not fresh,
            fresh=fresh,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            on_round=on_round,
            on_note=on_note,
        )

    try:
        return attempt(fresh=False)
    except Unusable as error:
        if on_note:
            on_note(f"{str(error).partition(';')[0]}; the cell starts again.")
        return attempt(fresh=True)


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def _expected(cell: Cell, finished: Sequence[Record]) -> float | None:
    """From the seconds of finished cells of the same scenario: of the same method, if there are."""
    scenario, algorithm = cell.entry.scenario, cell.entry.algorithm
    alike = [r for r in finished if r.scenario.name == scenario.name]
    same = [r for r in alike if r.label == algorithm]
    rates = [r.seconds / (r.rounds * work(r.label)) for r in same or alike]
    if not rates:
        return None
    return sum(rates) / len(rates) * work(algorithm) * scenario.rounds


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
