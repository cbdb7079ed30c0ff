"""A cell is one run, kept as one small file: what tables and figures need, without the models."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucfl import algorithms
from ucfl.arrays import read_npz
from ucfl.collaboration import Collaboration
from ucfl.errors import UcflError, unreadable
from ucfl.federation import default_initialisation
from ucfl.measure import ACCURACY
from ucfl.runs import Origin, Population, Record
from ucfl.runs.arrivals import ByWhen
from ucfl.runs.configuration import explicit
from ucfl.runs.files import write_atomically
from ucfl.runs.schema import FORMAT, StoredCell, parts_digest, validated
from ucfl.users import Scenario
from ucfl.users.names import numbered_names
from ucfl.wireless import Audience, Traffic

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
#: The halves of the held-out data, and NaN among hundredths of a percent.
SPLITS = ("test", "validation")
NO_VALUE = np.iinfo(np.uint16).max


@dataclass(frozen=True)
class Entry:
    """A table's entry or a figure's line: a scenario and an algorithm; its cells are its seeds."""

    scenario: Scenario
    algorithm: str

    def cells(self, seeds: Iterable[int]) -> list[Cell]:
        """One cell per seed."""
        return [Cell(self, seed) for seed in seeds]


@dataclass(frozen=True)
class Cell:
    """One run: everything that decides its numbers but the machine."""

    entry: Entry
    seed: int

    @property
    def name(self) -> str:
        """Tells a person what is inside, and differs wherever two cells do.

        Only the fields that differ from a scenario's defaults are part of it, so that a field
        that is added later leaves the names of stored cells alone.
        """
        scenario, algorithm = self.entry.scenario, self.entry.algorithm
        fields = scenario.model_dump(mode="json", exclude_defaults=True, exclude={"description"})
        if fields.get("initialisation") == default_initialisation(scenario.model_name):
            del fields["initialisation"]  # as if nobody had chosen
        text = json.dumps([fields, algorithm, self.seed], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        words = [scenario.name, algorithm, f"{scenario.rounds}rounds", f"seed{self.seed}", digest]
        return re.sub(r"[^\w.=-]+", "-", "-".join(words))

    @classmethod
    def of(cls, record: Record) -> Cell:
        """The cell that a record is of."""
        return cls(Entry(record.scenario, record.label), record.seed)


def row(record: Record) -> dict[str, Any]:
    """A cell's row of ``cells.csv``."""
    scenario, origin = record.scenario, record.origin
    n_k = getattr(algorithms.find(record.label), "variance_batch", None)
    return {
        "scenario": scenario.name,
        "algorithm": record.label,
        "streams": f"{record.traffic[-1, 0]:g}",
        "n_k": f"{scenario.variance_batch if n_k is None else n_k:.4g}",
        "tested_model": record.algorithm.tested_model,
        "last_batch": "keep" if origin.kept_last_batch else scenario.last_batch,
        "seed": record.seed,
        "rounds": record.rounds,
        **{
            f"{who}_{when}": f"{record.value(who, when):.3f}"
            for who in ("mean", "worst")
            for when in ("final", "best")
        },
        "best_round": record.best_round,
        "validation_best": f"{record.validation[record.best_round]:.3f}",
        "seconds": f"{record.seconds:.1f}",
        "device": origin.machine["device"],
        "executor": origin.machine.get("executor", ""),
        "data": origin.source,
        "versions": " ".join(f"{k} {v}" for k, v in origin.versions.items()),
    }


@dataclass(frozen=True)
class Store:
    """The folder of a reproduction: ``cells/`` holds a file per finished cell."""

    folder: Path

    def __post_init__(self) -> None:
        for place in (self.folder, *self.folder.parents):
            if place.is_file():
                raise UcflError(f"{place} is a file; give --out a folder.")

    def file(self, cell: Cell) -> Path:
        """Where the cell is, or will be."""
        return self.folder / "cells" / f"{cell.name}.npz"

    def unfinished(self, cell: Cell) -> Path:
        """The folder of the cell's run while it trains."""
        return self.folder / "unfinished" / cell.name

    def save(self, cell: Cell, record: Record) -> None:
        """Keep a finished cell, and every user's accuracies in hundredths of a percent."""
        found, groups = record.collaboration, record.population.groups
        labels = None if record.audience is None else record.audience.labels
        plan = _plan(found, labels)
        floats = {f"curve_{name}": values for name, values in record.curves.items()}
        floats |= {"traffic": record.traffic, "final": record.final, "best": record.best}
        for name in ("weights", "silhouettes"):
            if isinstance(values := getattr(found, name, None), Tensor):
                floats[name] = values.numpy()
        # float32 is half the size, and a thousandth of a point is far below the noise.
        arrays: dict[str, Any] = {name: v.astype(np.float32) for name, v in floats.items()}
        arrays |= {} if labels is None else {"labels": labels}
        arrays |= {} if plan is None else {"plan": plan}
        arrays |= {} if groups is None else {"groups": np.asarray(groups)}
        arrays |= {f"user_{split}": _hundredths(v) for split, v in record.by_user.items()}
        for split in SPLITS:
            if (sizes := getattr(record.population, f"{split}_sizes")) is not None:
                arrays[f"sizes_{split}"] = np.asarray(sizes, dtype=np.int64)
        about = {
            "format": FORMAT,
            "scenario": explicit(cell.entry.scenario).model_dump(mode="json"),
            "algorithm": cell.entry.algorithm,
            "seed": cell.seed,
            "hyper_parameters": record.algorithm.hyper_parameters,
            "tested_model": record.algorithm.tested_model,
            "best_round": record.best_round,
            "seconds": round(record.seconds, 2),
            "start_traffic": asdict(record.start),
            "users": record.users,
            "model_bytes": record.model_bytes,
            "data": record.origin.source,
            "device": record.origin.machine["device"],
            "executor": record.origin.machine.get("executor"),
            "versions": record.origin.versions,
            "newcomers": _as_null(record.newcomers),
            "dropped": record.dropped,
        }
        file = self.file(cell)
        text, contents = json.dumps(about), io.BytesIO()
        np.savez_compressed(
            contents, about=np.array(text), sha256=np.array(_digest(text, arrays)), **arrays
        )
        write_atomically(file, lambda path: path.write_bytes(contents.getvalue()))

    def load(self, cell: Cell) -> Record | None:
        """A finished cell, or None."""
        file = self.file(cell)
        if not file.exists():
            return None
        record = _read(file)
        # A label leaves defaults out, and defaults may have changed since. An option that came
        # later is at its default, or the label would have it.
        meant = algorithms.find(cell.entry.algorithm).facts.hyper_parameters
        own = {**meant, **record.algorithm.hyper_parameters}
        if Cell.of(record).name != cell.name or own != meant:
            raise UcflError(f"the cell {file} was made with other settings; remove it.")
        return replace(record, scenario=cell.entry.scenario)

    def is_kept(self, name: str) -> bool:
        """Whether the cell of this name is there; one that will be run again is not."""
        file = self.folder / "cells" / f"{name}.npz"
        try:
            cell = Cell.of(_read(file)) if file.exists() else None
            return cell is not None and cell.name == name and self.load(cell) is not None
        except UcflError:
            return False

    def every(self) -> list[Record]:
        """All cells of the folder, in the order of their names."""
        return [_read(file) for file in sorted((self.folder / "cells").glob("*.npz"))]

    def csv(self) -> str:
        """The text of ``cells.csv``: a row per stored cell."""
        rows = [row(record) for record in self.every()]
        rows.sort(key=lambda row: (row["scenario"], row["algorithm"], row["rounds"], row["seed"]))
        return csv_text(rows, list(rows[0]) if rows else [])

    def write_csv(self, name: str = "cells.csv", text: str | None = None) -> Path:
        """Write ``cells.csv``, or another file beside it."""
        file, text = self.folder / name, self.csv() if text is None else text
        write_atomically(file, lambda path: path.write_text(text))
        return file


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows under a line of the columns' names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _read(file: Path) -> Record:
    arrays = read_npz(file, "remove it.")
    try:
        text, signed = str(arrays.pop("about")), arrays.pop("sha256", None)
        about = validated(StoredCell, json.loads(text))
        old = about.get("format", 1) == 1 and signed is None  # version 0.1 stored no checksum
        if not old and str(signed) != _digest(text, arrays):
            raise ValueError("its checksum does not fit its contents")
        record = _record(file, about, arrays)
        record.check()
        return record
    except (KeyError, TypeError, ValueError, RecursionError, UcflError) as error:
        raise unreadable(file, error, "remove it.") from error


def _record(file: Path, about: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Record:
    floats = {
        name: values.astype(np.float64)
        for name, values in arrays.items()
        if values.dtype == np.float32
    }
    labels, plan, groups = (_whole(arrays, name) for name in ("labels", "plan", "groups"))
    facts = algorithms.find(about["algorithm"]).facts
    hyper = about.get("hyper_parameters", facts.hyper_parameters)
    return Record(
        scenario=Scenario.model_validate(about["scenario"]),
        algorithm=replace(
            facts,
            label=about["algorithm"],
            tested_model=about["tested_model"],
            hyper_parameters=hyper,
        ),
        seed=about["seed"],
        measure=ACCURACY,
        curves={name[6:]: v for name, v in floats.items() if name.startswith("curve_")},
        best_round=about["best_round"],
        final=floats["final"],
        best=floats["best"],
        start=Traffic(**about["start_traffic"]),
        traffic=floats["traffic"],
        seconds=float(about["seconds"]),
        model_bytes=about["model_bytes"],
        population=Population(
            list(numbered_names(about["users"])),
            None if groups is None else groups.tolist(),
            test_sizes=_listed(arrays, "sizes_test"),
            validation_sizes=_listed(arrays, "sizes_validation"),
        ),
        origin=Origin(
            kept=f"cells/{file.name}",
            command="",
            source=about["data"],
            versions=about["versions"],
            machine=_machine(about),
            # Version 0.1 kept it; the cells' names do not say so.
            kept_last_batch="last_batch" not in about["scenario"],
        ),
        collaboration=_collaboration(floats, labels, plan),
        audience=_audience(labels, about["scenario"], floats["traffic"]),
        by_user={
            name[5:]: _percent(values)
            for name, values in arrays.items()
            if name.startswith("user_") and values.dtype == np.uint16
        },
        newcomers=_as_nan(about.get("newcomers")),
        # Cells once did not say it. Everyone in them has test data, so no value means diverged.
        dropped=about.get("dropped", int(np.isnan(floats["final"]).sum())),
    )


def _hundredths(percent: Floats) -> NDArray[np.uint16]:
    """Percents as whole hundredths, which take a quarter of the room; the largest one is NaN."""
    whole = np.rint(100 * np.nan_to_num(percent)).astype(np.uint16)
    return np.where(np.isnan(percent), NO_VALUE, whole).astype(np.uint16)


def _percent(hundredths: NDArray[np.uint16]) -> Floats:
    return np.where(hundredths == NO_VALUE, np.nan, hundredths / 100)


def _machine(about: dict[str, Any]) -> dict[str, Any]:
    """Cells once did not say by what they were computed."""
    said = about.get("executor")
    return {"device": about["device"], **({} if said is None else {"executor": said})}


def _as_null(newcomers: ByWhen | None) -> dict[str, dict[str, float | None]] | None:
    """JSON has no NaN."""
    if newcomers is None:
        return None
    return {
        when: {who: None if np.isnan(value) else value for who, value in each.items()}
        for when, each in newcomers.items()
    }


def _as_nan(stored: Mapping[str, Mapping[str, float | None]] | None) -> ByWhen | None:
    if stored is None:
        return None
    return {
        when: {who: np.nan if value is None else value for who, value in each.items()}
        for when, each in stored.items()
    }


def _audience(
    labels: Whole | None, scenario: Mapping[str, Any], traffic: Floats
) -> Audience | None:
    """Of streams as large as they were: a cell keeps labels alone, and the models sent."""
    whole = Audience.of(labels)
    if whole is None or scenario.get("downlink", "none") == "none":
        return whole
    return whole.scaled(float(traffic[-1, 0]) / whole.models)


def _plan(found: Collaboration | None, heard: Whole | None) -> Whole | None:
    """The groups that a method found, where they are not just the streams that users hear."""
    if found is None or found.labels is None:
        return None
    labels = found.labels.numpy().astype(np.int64)
    return None if heard is not None and np.array_equal(labels, heard) else labels


def _collaboration(
    floats: Mapping[str, Floats], heard: Whole | None, plan: Whole | None
) -> Collaboration | None:
    """What a collaboration round found, where there was one."""
    found = heard if plan is None else plan
    labels = None if found is None else torch.from_numpy(found)
    if "weights" not in floats or "silhouettes" not in floats:
        return None if plan is None else Collaboration(labels=labels)
    weights, silhouettes = (torch.from_numpy(floats[key]) for key in ("weights", "silhouettes"))
    return Collaboration(weights, labels, silhouettes)


def _whole(arrays: Mapping[str, NDArray[Any]], name: str) -> Whole | None:
    found = arrays.get(name)
    return found if found is not None and found.dtype == np.int64 else None


def _listed(arrays: Mapping[str, NDArray[Any]], name: str) -> list[int] | None:
    found = _whole(arrays, name)
    return None if found is None else [int(value) for value in found]


def _digest(about: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of all that a cell holds."""
    return parts_digest(
        about,
        (
            (f"{name} {arrays[name].dtype} {arrays[name].shape}", arrays[name].tobytes())
            for name in sorted(arrays)
        ),
    )
