"""What decides a run's numbers, and how another configuration is told."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ucfl.algorithms import Algorithm, Facts
from ucfl.federation import (
    OBJECTIVES,
    Federation,
    default_initialisation,
    depends_on_rounds,
)
from ucfl.users import Scenario, Users

#: Fields of a later version; a default is not named, so that folders keep the names that they had.
LATER = (
    "classes_per_user", "sigma", "fewest", "group_shares", "permute_pixels", "uplink", "downlink",
    "target_column",
)  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """What decides a run's numbers; with the versions and the machine, enough to repeat it."""

    scenario: Scenario
    algorithm: Facts
    seed: int
    data: str
    model: str
    precision: str
    probe: tuple[float, ...]
    cohorts: str = ""
    metrics: tuple[tuple[str, bool, bool], ...] = ()

    @classmethod
    def of(
        cls, scenario: Scenario, algorithm: Algorithm, fed: Federation, users: Users
    ) -> Configuration:
        """The configuration of a run; ``users`` are those of all processes."""
        row = np.ascontiguousarray(fed.rows.initial.cpu().numpy())
        model = hashlib.sha256(row.view(np.uint8).data).hexdigest()
        return cls(
            scenario.in_words,
            algorithm.facts,
            fed.seed,
            users.checksum(),
            model,
            fed.precision,
            probe(fed),
            cohorts(fed),
            _metrics(fed),
        )

    def identity(self) -> dict[str, Any]:
        """What must be equal for a run to be continued; more rounds may be asked for.

        (Unless the learning rates follow the number of rounds.)
        """
        apart = {"name", "description"}
        apart |= set() if depends_on_rounds(self.scenario.schedule) else {"rounds"}
        # Where there is none it is not named: folders keep the names that they had.
        apart |= set() if self.scenario.deadline else {"deadline", "system"}
        fields = self.scenario.model_dump(mode="json", exclude=apart)
        for field in LATER:
            if fields[field] == Scenario.model_fields[field].default or fields[field] == []:
                del fields[field]
        words = {"algorithm": self.algorithm.label, "seed": self.seed}
        words |= {"data": self.data, "model": self.model}
        # Where it is the default it is not named: folders keep the names that they had.
        words |= {} if self.precision == "default" else {"precision": self.precision}
        words |= {"participation": self.cohorts} if self.cohorts else {}
        words |= {"metrics": [list(metric) for metric in self.metrics]} if self.metrics else {}
        return {**words, "scenario": fields}

    def behaves_like(self, stored: list[float] | None) -> bool:
        """Whether the model still computes what it did, up to rounding."""
        if stored is None:  # a run of version 0.1
            return True
        old, new = np.asarray(stored, dtype=np.float64), np.asarray(self.probe)
        return old.shape == new.shape and bool(
            np.allclose(old, new, rtol=0, atol=0.02 * (1e-6 + np.nanmax(np.abs(new), initial=0)))
        )

    @property
    def folder_name(self) -> str:
        """A name that tells a person what is inside, and differs where configurations do."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        words = [self.scenario.name, self.algorithm.label, f"{self.scenario.rounds}rounds"]
        words += [f"seed{self.seed}", digest[:8]]
        return re.sub(r"[^\w.=-]+", "-", "-".join(words))


def _metrics(fed: Federation) -> tuple[tuple[str, bool, bool], ...]:
    """A person's own metrics; those of our objectives follow from its name."""
    if fed.objective.name.partition(":")[0] in OBJECTIVES:
        return ()
    found = fed.objective.measured.items()
    return tuple((name, one.more_is_better, one.percent) for name, one in found)


def explicit(scenario: Scenario) -> Scenario:
    """The scenario as it is stored: its model, and how that one's first weights are made."""
    chosen = scenario.initialisation or default_initialisation(scenario.model_name)
    return scenario.in_words.change({"initialisation": chosen})


def probe(fed: Federation) -> tuple[float, ...]:
    """Some outputs, losses and metrics, by which other functions are told; rounding differs.

    At weights near the first ones: a last layer that starts from zero would hide the others.
    """
    row, cut = fed.rows.initial.to(fed.device), fed.rows.trainable
    moved = row.clone()
    moved[:cut] += 0.05 * torch.arange(cut, dtype=row.dtype, device=row.device).sin()
    first = slice(min(4, int(fed.sizes[0])))
    with torch.no_grad():
        out = fed.model.outputs(moved, fed.users.train.inputs[0, first])
        targets = fed.users.train.targets[0, first]
        loss = fed.objective.loss(out, targets)
        each = [m.statistics(out, targets) for m in fed.objective.measured.values()]
    sums = [one.double().reshape(len(loss), -1).sum(0)[:16] for one in each]
    found = torch.cat([out.flatten()[:64].double(), loss.double(), *sums]).nan_to_num()
    return tuple(found.tolist())


def cohorts(fed: Federation) -> str:
    """A checksum of the first cohorts, by which traces and a person's functions are told."""
    digest, partial = hashlib.sha256(), False
    for t in range(1, 17):
        try:
            mine = fed.cohort(t)
        except LookupError:  # a person's function that knows the run's rounds alone
            break
        if mine is not None:
            partial = True
            every = fed.gathered(mine.to(fed.device)).cpu().numpy()
            digest.update(str(t).encode() + every.tobytes())
    return digest.hexdigest() if partial else ""
