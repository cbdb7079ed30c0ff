"""A cell is one run, kept as one small file: what tables and figures need, without the models."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucfl import algorithms
from ucfl.arrays import read_npz
from ucfl.errors import UcflError, unreadable
from ucfl.federation import default_initialisation
from ucfl.measure import ACCURACY
from ucfl.runs import Run
from ucfl.runs.configuration import explicit
from ucfl.runs.files import write_atomically
from ucfl.runs.schema import FORMAT, StoredCell, parts_digest, validated
from ucfl.users import Scenario
from ucfl.wireless import Traffic

Floats = NDArray[np.float64]

#: Of every cell.
CURVES = ("test_mean", "test_worst", "validation_mean", "validation_worst")


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


@dataclass(frozen=True, eq=False)
class Result:
    """What a finished cell leaves. Accuracies are in percent; round 0 is the untrained model.

    ``curves`` maps ``test_mean``, ``test_worst``, ``validation_mean`` and ``validation_worst`` to
    [T + 1]; ``traffic`` [T, 3] has each round's models down, models up and work; ``final`` and
    ``best`` [m] are every user's test accuracies at the last round and at the one that validation
    chooses. ``weights``, ``silhouettes`` (of k = 1, 2, …) and ``labels`` are the collaboration
    round's, ``groups`` the true groups: each where there is one.
    """

    cell: Cell
    about: dict[str, Any]
    curves: dict[str, Floats]
    traffic: Floats
    final: Floats
    best: Floats
    weights: Floats | None = None
    silhouettes: Floats | None = None
    labels: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, cell: Cell, run: Run) -> Result:
        """What is kept of a finished run."""
        point, about, chosen = run.checkpoint, run.about, run.summary["best_round"]
        history = {name: values.double().numpy() for name, values in point.history.items()}
        curves = {
            f"{name.removesuffix('_accuracy')}_{who}": np.array([over(row) for row in values])
            for name, values in history.items()
            if name.endswith("_accuracy") and not name.endswith("balanced_accuracy")
            for who, over in (("mean", ACCURACY.mean), ("worst", ACCURACY.worst))
        }
        found = run.collaboration
        heard, groups = run.audience, about["users"]["groups"]
        return cls(
            cell,
            {
                "hyper_parameters": dict(run.algorithm.hyper_parameters),
                "tested_model": run.algorithm.tested_model,
                "best_round": chosen,
                "seconds": round(point.seconds, 2),
                "start_traffic": about["start_traffic"],
                "users": run.users,
                "model_bytes": run.model_bytes,
                "data": about["users"]["source"],
                "device": about["machine"]["device"],
                "versions": about["versions"],
            },
            curves,
            point.traffic.numpy(),
            100 * history["test_accuracy"][-1],
            100 * history["test_accuracy"][chosen],
            None if found is None or found.weights is None else _array(found.weights),
            None if found is None or found.silhouettes is None else _array(found.silhouettes),
            None if heard is None else heard.labels,
            None if groups is None else np.asarray(groups),
        )

    def check(self) -> None:
        """Raise ValueError unless the parts fit together."""
        users, rounds = self.about["users"], len(self.traffic)
        shapes = {"traffic": (rounds, 3), "final": (users,), "best": (users,)}
        optional = {"weights": (users, users), "labels": (users,), "groups": (users,)}
        shapes |= {
            name: shape for name, shape in optional.items() if getattr(self, name) is not None
        }
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        wrong += [name for name in CURVES if self.curves[name].shape != (rounds + 1,)]
        if self.silhouettes is not None and not 1 <= self.silhouettes.size <= users:
            wrong.append("silhouettes")
        if wrong or rounds < 1 or self.about["best_round"] > rounds:
            raise ValueError(f"its parts do not fit each other: {', '.join(wrong) or 'rounds'}")

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.traffic)

    @property
    def start_traffic(self) -> Traffic:
        """What was sent and computed once, before the first round."""
        return Traffic(**self.about["start_traffic"])

    @property
    def seconds(self) -> float:
        """How long the cell took."""
        return float(self.about["seconds"])

    def accuracy(self, who: str, when: str) -> float:
        """``who`` is mean or worst, over users; ``when`` is final or best (validation-chosen)."""
        at = self.about["best_round"] if when == "best" else -1
        return float(self.curves[f"test_{who}"][at])

    def row(self) -> dict[str, Any]:
        """The cell's row of ``cells.csv``."""
        scenario, algorithm = self.cell.entry.scenario, self.cell.entry.algorithm
        about = self.about
        n_k = getattr(algorithms.find(algorithm), "variance_batch", None)
        return {
            "scenario": scenario.name,
            "algorithm": algorithm,
            "streams": f"{self.traffic[-1, 0]:g}",
            "n_k": f"{scenario.variance_batch if n_k is None else n_k:.4g}",
            "tested_model": about["tested_model"],
            "last_batch": about.get("last_batch", scenario.last_batch),
            "seed": self.cell.seed,
            "rounds": self.rounds,
            **{
                f"{who}_{when}": f"{self.accuracy(who, when):.3f}"
                for who in ("mean", "worst")
                for when in ("final", "best")
            },
            "best_round": about["best_round"],
            "validation_best": f"{self.curves['validation_mean'][about['best_round']]:.3f}",
            "seconds": f"{self.seconds:.1f}",
            "device": about["device"],
            "data": about["data"],
            "versions": " ".join(f"{k} {v}" for k, v in about["versions"].items()),
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

    def save(self, result: Result) -> None:
        """Keep a finished cell."""
        cell = result.cell
        floats = {f"curve_{name}": values for name, values in result.curves.items()}
        floats |= {"traffic": result.traffic, "final": result.final, "best": result.best}
        optional = {"weights": result.weights, "silhouettes": result.silhouettes}
        floats |= {name: values for name, values in optional.items() if values is not None}
        numbers = {"labels": result.labels, "groups": result.groups}
        # float32 is half the size, and a thousandth of a point is far below the noise.
        arrays: dict[str, Any] = {name: v.astype(np.float32) for name, v in floats.items()}
        arrays |= {name: values for name, values in numbers.items() if values is not None}
        about = {
            "format": FORMAT,
            "scenario": explicit(cell.entry.scenario).model_dump(mode="json"),
            "algorithm": cell.entry.algorithm,
            "seed": cell.seed,
            **result.about,
        }
        file = self.file(cell)
        text, contents = json.dumps(about), io.BytesIO()
        np.savez_compressed(
            contents, about=np.array(text), sha256=np.array(_digest(text, arrays)), **arrays
        )
        write_atomically(file, lambda path: path.write_bytes(contents.getvalue()))

    def load(self, cell: Cell) -> Result | None:
        """A finished cell, or None."""
        file = self.file(cell)
        if not file.exists():
            return None
        result = _read(file)
        # A label leaves defaults out, and defaults may have changed since.
        meant = asdict(algorithms.find(cell.entry.algorithm))
        if result.cell.name != cell.name or result.about.get("hyper_parameters", meant) != meant:
            raise UcflError(f"the cell {file} was made with other settings; remove it.")
        return replace(result, cell=cell)

    def is_kept(self, name: str) -> bool:
        """Whether the cell of this name is there; one that will be run again is not."""
        file = self.folder / "cells" / f"{name}.npz"
        try:
            cell = _read(file).cell if file.exists() else None
            return cell is not None and cell.name == name and self.load(cell) is not None
        except UcflError:
            return False

    def every(self) -> list[Result]:
        """All cells of the folder, in the order of their names."""
        return [_read(file) for file in sorted((self.folder / "cells").glob("*.npz"))]

    def csv(self) -> str:
        """The text of ``cells.csv``: a row per stored cell."""
        rows = [result.row() for result in self.every()]
        rows.sort(key=lambda row: (row["scenario"], row["algorithm"], row["rounds"], row["seed"]))
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def write_csv(self) -> Path:
        """Write ``cells.csv``."""
        file, text = self.folder / "cells.csv", self.csv()
        write_atomically(file, lambda path: path.write_text(text))
        return file


def _read(file: Path) -> Result:
    arrays = read_npz(file, "remove it.")
    try:
        text, signed = str(arrays.pop("about")), arrays.pop("sha256", None)
        about = validated(StoredCell, json.loads(text))
        old = about.pop("format", 1) == 1 and signed is None  # version 0.1 stored no checksum
        if not old and str(signed) != _digest(text, arrays):
            raise ValueError("its checksum does not fit its contents")
        fields = about.pop("scenario")
        if "last_batch" not in fields:  # version 0.1 kept it; the cells' names do not say so
            about["last_batch"] = "keep"
        entry = Entry(Scenario.model_validate(fields), about.pop("algorithm"))
        floats = {
            name: values.astype(np.float64)
            for name, values in arrays.items()
            if values.dtype == np.float32
        }
        numbers = {name: values for name, values in arrays.items() if values.dtype == np.int64}
        result = Result(
            Cell(entry, about.pop("seed")),
            about,
            {name[6:]: values for name, values in floats.items() if name.startswith("curve_")},
            floats["traffic"],
            floats["final"],
            floats["best"],
            floats.get("weights"),
            floats.get("silhouettes"),
            numbers.get("labels"),
            numbers.get("groups"),
        )
        result.check()
        return result
    except (KeyError, TypeError, ValueError, RecursionError, UcflError) as error:
        raise unreadable(file, error, "remove it.") from error


def _digest(about: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of all that a cell holds."""
    return parts_digest(
        about,
        (
            (f"{name} {arrays[name].dtype} {arrays[name].shape}", arrays[name].tobytes())
            for name in sorted(arrays)
        ),
    )


def _array(value: object) -> Floats | None:
    return value.double().numpy() if isinstance(value, Tensor) else None
