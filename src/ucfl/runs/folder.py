"""A run is a folder: its configuration, its history, its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from ucfl import algorithms
from ucfl.algorithms import Algorithm, Facts, Findings
from ucfl.collaboration.found import Collaboration
from ucfl.errors import UcflError, first_line, unreadable
from ucfl.federation import Architecture
from ucfl.measure import ACCURACY, Measure
from ucfl.runs import deployment
from ucfl.runs.arrivals import WHEN
from ucfl.runs.checkpoint import AGAIN, Checkpoint, checkpoint_name
from ucfl.runs.files import UNFINISHED
from ucfl.runs.history import read_history
from ucfl.runs.record import Record, record_of
from ucfl.runs.schema import StoredRun, checked
from ucfl.runs.words import in_words
from ucfl.users import Scenario, Split
from ucfl.wireless import Audience, Traffic
from ucfl.words import counted, either

if TYPE_CHECKING:
    import pandas as pd  # slow to import, and only looked-at runs need it

#: The splits on which models are evaluated after every round.
EVALUATED: tuple[Split, ...] = ("test", "validation")
CONFIGURATION, HISTORY, CHECKPOINT = "run.json", "history.parquet", checkpoint_name()


@dataclass(frozen=True)
class Run:
    """A run on disk; ``architecture`` is its model's, where this process trained it."""

    folder: Path
    scenario: Scenario
    algorithm: Facts
    seed: int
    architecture: Architecture | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return in_words(self)

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
        first = {f"{split}_{self.measure.name}" for split in EVALUATED}
        return read_history(self.folder / HISTORY, self.users, first)

    def per_user(self, metric: str) -> NDArray[np.float64]:
        """One metric as [rounds + 1, users]."""
        chosen = self.history[self.history["metric"] == metric]
        table = chosen.pivot_table(
            index="round", columns="user", values="value", dropna=False, sort=True
        )
        return table.to_numpy(dtype=np.float64)

    @property
    def summary(self) -> dict[str, Any]:
        """The first metric at the final round and at the round that validation chooses."""
        test, measure = self.split("test"), self.measure
        best = measure.best_round(self.split("validation"))
        return {
            "mean": {"final": measure.mean(test[-1]), "best": measure.mean(test[best])},
            "worst": {"final": measure.worst(test[-1]), "best": measure.worst(test[best])},
            "best_round": best,
        }

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """The metrics of its objective; it is judged by the first. Version 0.1 had accuracy."""
        stored = self.about.get("metrics")
        return (ACCURACY,) if stored is None else tuple(Measure(**one) for one in stored)

    @property
    def measure(self) -> Measure:
        """What it is judged by."""
        return self.measures[0]

    def split(self, name: Split) -> NDArray[np.float64]:
        """[rounds + 1, users]: what it is judged by, on test or validation data."""
        return self.per_user(f"{name}_{self.measure.name}")

    @property
    def record(self) -> Record:
        """All that readers want to know of it, without its models."""
        return record_of(replace(self))  # the copy's checkpoint, which may be large, goes with it

    @cached_property
    def about(self) -> dict[str, Any]:
        """The stored ``run.json``."""
        return read_configuration(self.folder)

    @property
    def names(self) -> list[str]:
        """The users' names, in the order of their numbers."""
        return list(self.about["users"]["names"])

    @property
    def users(self) -> int:
        """m."""
        return len(self.names)

    def model(self, user: int | str, *, model: nn.Module | str | None = None) -> nn.Module:
        """The model that a user (a number or a name) would deploy after the last stored round.

        It takes inputs as they are in the user's data, is in evaluation mode and on the CPU. A
        model of your own that a new process cannot make again is given as ``model``: any instance
        of it, whose weights do not matter, or ``module:factory``.
        """
        return deployment.model(self, user, model)

    def save_models(
        self, folder: str | Path, *, model: nn.Module | str | None = None, fresh: bool = False
    ) -> Path:
        """Every user's model as a safetensors file in ``folder``; ``models.json`` says which.

        ``fresh`` replaces the models that were saved there before.
        """
        return deployment.save(self, Path(folder), model, fresh=fresh)

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
    def newcomers(self) -> dict[str, dict[str, float]] | None:
        """Mean and worst newcomer with the model that it gets, and after local training.

        By ``before`` and ``after``; None where none came, or the method has no model for them.
        """
        found, measure = self.checkpoint.newcomers, self.measure
        if not found:
            return None
        by_when = {when: found[f"{when}_{measure.name}"].numpy() for when in WHEN}
        return {
            when: {"mean": measure.mean(values), "worst": measure.worst(values)}
            for when, values in by_when.items()
        }

    @property
    def stopped_early(self) -> str:
        """By which callback the run was ended before its last round, and why; empty if by none."""
        return self.checkpoint.stopped

    @property
    def metrics(self) -> list[str]:
        """What the history has for every user: the metrics, and what callbacks added."""
        return list(self.checkpoint.history)

    @property
    def audience(self) -> Audience | None:
        """Which of the last round's broadcasts each user listened to; None: to all of them."""
        return self.findings.audience

    @property
    def collaboration(self) -> Collaboration | None:
        """Who learns from whom, and which parts are mixed; None for methods that do not say."""
        return self.findings.collaboration

    @property
    def start_traffic(self) -> Traffic:
        """What was sent and computed once, before the first round."""
        return Traffic(**self.about["start_traffic"])


def holds_runs(folder: Path) -> bool:
    """Whether a folder is a run, or has runs in it."""
    return (folder / CONFIGURATION).exists() or any(folder.glob(f"*/{CONFIGURATION}"))


def runs_in(folder: Path) -> list[Run]:
    """The runs in a folder, or the folder itself."""
    places = [folder] if (folder / CONFIGURATION).exists() else sorted(folder.iterdir())
    places = [place for place in places if not place.name.endswith(UNFINISHED)]
    found = [Run.open(place) for place in places if (place / CONFIGURATION).exists()]
    if not found:
        raise UcflError(
            f"{folder} holds no run: give a run's folder, or one with runs' folders in it."
        )
    return found


def dropped_in_words(dropped: Mapping[int, int], names: Sequence[str]) -> str:
    """What became of users whose models diverged; an empty text for none."""
    if not dropped:
        return ""
    each = [f"{names[user]} (round {t})" for user, t in sorted(dropped.items())]
    few = ", ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "")
    return (
        f"{len(each)} of {counted(len(names), 'user')} diverged and "
        f"{either(len(each), 'is', 'are')} absent since: {few}; means and worst users are those of "
        "the others."
    )


def deviation(values: ArrayLike) -> NDArray[np.float64]:
    """The sample deviation over the first axis, that of seeds; 0 for one."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return np.zeros(array.shape[1:])
    spread: NDArray[np.float64] = array.std(axis=0, ddof=1)
    return spread


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
