"""Which runs belong in one table: asked of stored runs, and before others are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucfl.errors import UcflError
from ucfl.runs.configuration import Configuration
from ucfl.runs.folder import CONFIGURATION, Run, runs_in
from ucfl.words import counted


@dataclass(frozen=True)
class Entry:
    """What decides whether a run can be compared with others; ``identity`` is as it is stored."""

    folder: Path
    label: str
    seed: int
    rounds: int
    scenario: str
    identity: Mapping[str, Any]

    @classmethod
    def stored(cls, run: Run, label: str) -> Entry:
        """Of a run on disk."""
        about, scenario = run.about["configuration"], run.scenario
        return cls(run.folder, label, run.seed, scenario.rounds, scenario.name, about)

    @classmethod
    def planned(cls, folder: Path, configuration: Configuration) -> Entry:
        """Of a run that is to be trained."""
        label, scenario = configuration.algorithm.label, configuration.scenario
        identity = configuration.identity()
        return cls(folder, label, configuration.seed, scenario.rounds, scenario.name, identity)

    def conflict(self, other: Entry, apart: Sequence[str] = ()) -> str:
        """What keeps two runs out of one table, as a clause; empty for nothing.

        Scenarios may differ in the fields ``apart``, which the labels tell.
        """
        if self.folder == other.folder:
            return f"{self.folder} is given twice"
        both = f"{self.folder} and {other.folder}"
        old, new = self.identity["scenario"], other.identity["scenario"]
        # What came later is named only where it is set, so either may lack a field.
        if fields := _differing(old, new, {*apart}):
            names = sorted({self.scenario, other.scenario})
            of = f" ({' and '.join(names)})" if len(names) > 1 else ""
            return f"{both} cannot be compared: their scenarios{of} differ in {', '.join(fields)}"
        if self.seed != other.seed:
            return ""
        if self.identity["data"] != other.identity["data"]:
            return (
                f"{both} cannot be compared: they have different users' data for seed {self.seed}"
            )
        if self.label != other.label:
            return ""
        twice = f"{both} are both {self.label} with seed {self.seed}"
        if self.rounds != other.rounds:
            return f"{twice}, of {self.rounds} and {counted(other.rounds, 'round')}"
        words = _differing(self.identity, other.identity, {"scenario", "algorithm"})
        return (
            f"{twice}, different in {', '.join(words)}" if words else f"{twice}, and the same run"
        )


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], apart: set[str]) -> list[str]:
    return sorted(key for key in {*new, *old} - apart if new.get(key) != old.get(key))


def label_of(run: Run) -> str:
    """The algorithm with its hyper-parameters."""
    return run.algorithm.label


def by_label(
    runs: Iterable[Run], label: Callable[[Run], str] = label_of, apart: Sequence[str] = ()
) -> dict[str, list[Run]]:
    """Runs by what ``label`` calls them, in order of their seeds.

    Raise unless they are of one scenario (but for the fields ``apart``, which labels tell), and
    have one data set and every label once for each seed.
    """
    found: dict[str, list[Run]] = {}
    met: dict[tuple[Any, ...], Entry] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        new = Entry.stored(run, label(run))
        for kind in ((), (new.seed,), (new.seed, new.label)):
            first = met.setdefault(kind, new)
            if first is not new and (why := first.conflict(new, apart)):
                raise UcflError(
                    f"{why}; give the folders of runs that belong together, or move the others "
                    "elsewhere (--out with another folder keeps new runs apart)."
                )
        found.setdefault(new.label, []).append(run)
    return found


def find_runs(folder: Path) -> dict[str, list[Run]]:
    """The runs in a folder (or the folder itself), by algorithm, in order of their seeds."""
    return by_label(runs_in(folder))


def conflict_with_stored(out: Path, planned: Sequence[Entry]) -> str:
    """A sentence where a folder of runs has some that new ones cannot be compared with; or none."""
    for file in sorted(out.glob(f"*/{CONFIGURATION}")):
        with suppress(UcflError):  # what cannot be read is said by who reads it
            run = Run.open(file.parent)
            old = Entry.stored(run, label_of(run))
            # Its own folder: the run is there already, goes on or is replaced.
            others = [new for new in planned if new.folder != old.folder]
            if why := next(filter(None, map(old.conflict, others)), ""):
                return (
                    f"{why}: every run is kept, but report and figure refuse a folder of "
                    "both; --out with another folder keeps new runs apart."
                )
    return ""
