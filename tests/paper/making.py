"""Cells with the numbers that a test wants, without training."""

from dataclasses import replace

import numpy as np
import torch

from ucfl.algorithms import find
from ucfl.collaboration import Collaboration
from ucfl.measure import ACCURACY
from ucfl.paper import Cell
from ucfl.runs import Origin, Population, Record
from ucfl.users.names import numbered_names
from ucfl.wireless import Audience, Traffic


def result(entry, seed=0, *, mean=50.0, worst=40.0, rounds=None, streams=1.0, users=4,
           of_users=None, **arrays):  # fmt: skip
    """A finished cell whose accuracies rise from 0 to ``mean`` and ``worst``."""
    length = (rounds or entry.scenario.rounds) + 1
    rise = np.linspace(0, 1, length)
    curves = {
        f"{split}_{who}": rise * value
        for split in ("test", "validation")
        for who, value in (("mean", mean), ("worst", worst))
    }
    facts = replace(find(entry.algorithm).facts, label=entry.algorithm, tested_model="aggregated")
    labels, groups = arrays.pop("labels", None), arrays.pop("groups", None)
    found = {name: torch.as_tensor(values) for name, values in arrays.items() if values is not None}
    if found:
        found.setdefault("weights", torch.eye(users, dtype=torch.float64))
        found["labels"] = None if labels is None else torch.as_tensor(labels)
    return Record(
        scenario=entry.scenario,
        algorithm=facts,
        seed=seed,
        measure=ACCURACY,
        curves=curves,
        best_round=length - 1,
        final=np.full(users, mean),
        best=np.full(users, mean),
        start=Traffic(0, 0, 0),
        traffic=np.tile([streams, 1.0, 1.0], (length - 1, 1)),
        seconds=12.0,
        model_bytes=100,
        population=Population(
            list(numbered_names(users)), None if groups is None else np.asarray(groups).tolist()
        ),
        origin=Origin(
            f"cells/{Cell(entry, seed).name}.npz", "", "made up", {"torch": "2"}, {"device": "cpu"}
        ),
        collaboration=Collaboration(**found) if found else None,
        audience=Audience.of(labels),
        **(of_users or {}),
    )
