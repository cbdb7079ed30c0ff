"""A run is a folder: its configuration, its history, its checkpoint."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ucfl import algorithms, distributed
from ucfl.algorithms import Algorithm, Facts, Findings
from ucfl.collaboration.found import Collaboration
from ucfl.errors import UcflError, first_line, unreadable
from ucfl.federation import Federation
from ucfl.runs.checkpoint import AGAIN, Checkpoint
from ucfl.runs.configuration import Configuration
from ucfl.runs.files import UNFINISHED, write_atomically
from ucfl.runs.history import read_history
from ucfl.runs.schema import FORMAT, StoredRun, checked, json_digest
from ucfl.users import Scenario, Users
from ucfl.wireless import Traffic

if TYPE_CHECKING:
    import pandas as pd  # slow to import, and only looked-at runs need it

CONFIGURATION, HISTORY, CHECKPOINT = "run.json", "history.parquet", "checkpoint.safetensors"


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: Path
    scenario: Scenario
    algorithm: Facts
    seed: int

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """A run that was made earlier, finished or not."""
        about = read_configuration(Path(folder))
        try:
            # Runs of version 0.1 do not say that they kept every last batch.
            scenario = Scenario.model_validate({"last_batch": "keep", **about["scenario"]})
            algorithm = _facts(about)
        except (ValueError, UcflError) as error:
            raise UcflError(
                f"{folder} holds a run that this version cannot read ({first_line(error)})."
            ) from error
        return cls(Path(folder), scenario, algorithm, about["seed"])

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint, on the CPU."""
        return Checkpoint.load(self.folder / CHECKPOINT, torch.device("cpu"))

    def load_algorithm(self) -> Algorithm:
        """The algorithm itself, whose class must be there: reading a run does not need it."""
        return algorithms.revived(self.algorithm)

    @cached_property
    def findings(self) -> Findings:
        """What the algorithm said of its last state.

        Checkpoints of version 0.1 do not tell, so their algorithms are asked now.
        """
        try:
            found, state = self.checkpoint.findings, self.checkpoint.state
            found = self.load_algorithm().findings(state) if found is None else found
            found.check(self.users)
            return found
        except (KeyError, TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise unreadable(self.folder / CHECKPOINT, error, AGAIN) from error

    @cached_property
    def history(self) -> pd.DataFrame:
        """The tidy table: round, user, metric, value. Round 0 is the untrained model."""
        return read_history(self.folder / HISTORY, self.users)

    def per_user(self, metric: str) -> NDArray[np.float64]:
        """One metric as [rounds + 1, users]."""
        chosen = self.history[self.history["metric"] == metric]
        table = chosen.pivot_table(
            index="round", columns="user", values="value", dropna=False, sort=True
        )
        return table.to_numpy(dtype=np.float64)

    @property
    def summary(self) -> dict[str, Any]:
        """Accuracies in percent at the final round and at the round that validation chooses."""
        test = self.per_user("test_accuracy")
        best = best_round(self.per_user("validation_accuracy"))
        return {
            "mean": {"final": mean(test[-1]), "best": mean(test[best])},
            "worst": {"final": worst(test[-1]), "best": worst(test[best])},
            "best_round": best,
        }

    @cached_property
    def about(self) -> dict[str, Any]:
        """The stored ``run.json``."""
        return read_configuration(self.folder)

    @property
    def users(self) -> int:
        """m."""
        return len(self.about["users"]["names"])

    @property
    def model_bytes(self) -> int:
        """What one model takes on air."""
        return int(self.about["model_bytes"])

    @property
    def traffic(self) -> Traffic:
        """What the last round sent and computed (clusterings change it as they go)."""
        return Traffic(*self.checkpoint.traffic[-1].tolist())

    @property
    def dropped(self) -> dict[int, int]:
        """Users whose models diverged, and the round from which they are absent."""
        return dict(self.checkpoint.dropped)

    @property
    def stopped_early(self) -> str:
        """By which callback the run was ended before its last round, and why; empty if by none."""
        return self.checkpoint.stopped

    @property
    def metrics(self) -> list[str]:
        """What the history has for every user: accuracies, and what callbacks added."""
        return list(self.checkpoint.history)

    @property
    def audience(self) -> NDArray[np.int64] | None:
        """Which of the last round's broadcasts each user listened to; None: to all of them."""
        labels = self.findings.audience
        return None if labels is None else labels.numpy()

    @property
    def collaboration(self) -> Collaboration | None:
        """Who learns from whom; None for methods that do not measure it."""
        return self.findings.collaboration

    @property
    def start_traffic(self) -> Traffic:
        """What was sent and computed once, before the first round."""
        return Traffic(**self.about["start_traffic"])


def holds_runs(folder: Path) -> bool:
    """Whether a folder is a run, or has runs in it."""
    return (folder / CONFIGURATION).exists() or any(folder.glob(f"*/{CONFIGURATION}"))


def find_runs(folder: Path) -> dict[str, list[Run]]:
    """The runs in a folder (or the folder itself), by algorithm, in order of their seeds."""
    places = [folder] if (folder / CONFIGURATION).exists() else sorted(folder.iterdir())
    places = [place for place in places if not place.name.endswith(UNFINISHED)]
    found = [Run.open(place) for place in places if (place / CONFIGURATION).exists()]
    if not found:
        raise UcflError(
            f"{folder} holds no run: give a run's folder, or one with runs' folders in it."
        )
    if len(names := {run.scenario.name for run in found}) > 1:
        raise UcflError(f"{folder} holds runs of several scenarios: {', '.join(sorted(names))}.")
    runs: dict[str, list[Run]] = {}
    for run in sorted(found, key=lambda run: run.seed):
        runs.setdefault(run.algorithm.label, []).append(run)
    return runs


def dropped_in_words(dropped: Mapping[int, int], names: Sequence[str]) -> str:
    """What became of users whose models diverged; an empty text for none."""
    if not dropped:
        return ""
    each = [f"{names[user]} (round {t})" for user, t in sorted(dropped.items())]
    few = ", ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "")
    return (
        f"{len(each)} of {len(names)} users diverged and are absent since: {few}; means and worst "
        "users are those of the others."
    )


def mean(accuracies: NDArray[np.float64]) -> float:
    """Mean accuracy in percent over the users that have test data; NaN if none has."""
    real = accuracies[~np.isnan(accuracies)]
    return float(100 * real.mean()) if len(real) else float("nan")


def worst(accuracies: NDArray[np.float64]) -> float:
    """Lowest accuracy in percent among the users that have test data; NaN if none has."""
    real = accuracies[~np.isnan(accuracies)]
    return float(100 * real.min()) if len(real) else float("nan")


def deviation(values: ArrayLike) -> NDArray[np.float64]:
    """The sample deviation over the first axis, that of seeds; 0 for one."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return np.zeros(array.shape[1:])
    spread: NDArray[np.float64] = array.std(axis=0, ddof=1)
    return spread


def best_round(validation: NDArray[np.float64]) -> int:
    """The round that the users' validation accuracies choose."""
    return chosen_round(np.array([mean(row) for row in validation]))


def chosen_round(means: NDArray[np.float64]) -> int:
    """The trained round with the highest mean validation accuracy, the earliest of equals.

    Without validation data there is nothing to choose by: the final round.
    """
    if len(means) < 2 or np.isnan(means[1:]).all():
        return len(means) - 1
    return 1 + int(np.nanargmax(means[1:]))


def read_configuration(folder: Path) -> dict[str, Any]:
    """The stored ``run.json``."""
    file = folder / CONFIGURATION
    try:
        return checked(StoredRun, json.loads(file.read_text()))
    except FileNotFoundError:
        raise UcflError(f"{folder} is not a run: it holds no {CONFIGURATION}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(file, error, AGAIN) from error


def _facts(about: Mapping[str, Any]) -> Facts:
    """What a stored run says of its algorithm; before version 0.2 it said the label alone."""
    stored = about.get("algorithm_facts")
    return algorithms.find(about["algorithm"]).facts if stored is None else Facts(**stored)


def write_configuration(
    folder: Path,
    configuration: Configuration,
    fed: Federation,
    users: Users,
    start_traffic: Traffic,
    t: int = 0,
) -> None:
    """Write ``run.json``: what to repeat the run with; ``users`` are all of them.

    A run that goes on after round t keeps what it said of the machine that began it; each stretch
    of rounds has an entry under ``sessions``.
    """
    packages = ("ucfl", "torch", "numpy", "scikit-learn", "scipy")
    session: dict[str, Any] = {
        "after_round": t,
        "dataset": configuration.scenario.dataset,
        "machine": {
            "device": device_name(fed.device),
            "executor": str(fed.executor),
            "precision": fed.precision,
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
        },
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in packages},
        "command": ["ucfl", *sys.argv[1:]],
    }
    before = read_configuration(folder) if t else {}
    first = before if before else session
    about: dict[str, Any] = {
        "format": FORMAT,
        "configuration": configuration.identity(),
        "scenario": configuration.scenario.model_dump(mode="json"),
        "algorithm": configuration.algorithm.label,
        "algorithm_facts": asdict(configuration.algorithm),
        "seed": configuration.seed,
        "start_traffic": asdict(start_traffic),
        "users": {
            "names": users.names,
            "source": users.source,
            "groups": None if users.groups is None else users.groups.tolist(),
            "label_counts": users.label_counts().tolist(),
            "test_sizes": users.test.sizes.tolist(),
            "class_names": users.class_names,
        },
        "parameters": fed.rows.size,
        "model_bytes": fed.rows.bytes,
        "processes": distributed.ranks(),
        "probe": configuration.probe,
        **{word: first[word] for word in ("machine", "versions", "command")},
        "sessions": [*before.get("sessions", []), session],
    }
    about["sha256"] = json_digest(about)
    # Lists of numbers on one line each: a user's labels would fill a screen. Only the encoder's own
    # line breaks can match, since those inside names are escaped.
    text = re.sub(
        r"\[\n[\s\d,.e+-]+\]", lambda m: " ".join(m[0].split()), json.dumps(about, indent=2)
    )
    write_atomically(folder / CONFIGURATION, lambda path: path.write_text(text + "\n"))


def device_name(device: torch.device) -> str:
    """The GPU's own name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
