"""Newcomers: what a trained federation does for users that it never saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ucfl.algorithms import Algorithm, State
from ucfl.errors import Diverged
from ucfl.federation import Federation, Memory
from ucfl.federation.training import constant
from ucfl.users import Users

#: When newcomers are evaluated: with the model that they get, and after a round of local training.
WHEN = ("before", "after")
#: A mean and a worst value by ``before`` and ``after``.
ByWhen = dict[str, dict[str, float]]


def welcome(
    algorithm: Algorithm, fed: Federation, state: State, users: Users, t: int
) -> dict[str, Tensor] | None:
    """Their metrics [q] on test data by ``before_NAME`` and ``after_NAME``.

    None where the method has no model for them. ``after``: they train as others do in round t, with
    a new optimiser and the scenario's own rate (a schedule may have ended near 0), and nothing is
    mixed. Every process does this for all of them.
    """
    arrivals = fed.of(users)
    theta = algorithm.newcomers(fed, state, arrivals)
    if theta is None:
        return None
    found = {f"before_{name}": values for name, values in arrivals.metrics(theta).items()}
    after = arrivals.metrics(_trained(arrivals, theta, t))
    found |= {f"after_{name}": values for name, values in after.items()}
    return {name: values.float().cpu() for name, values in found.items()}


def _trained(arrivals: Federation, theta: Tensor, t: int) -> Tensor:
    """Their models after local training; NaN for who diverges."""
    present = torch.ones(arrivals.m, dtype=torch.bool)
    training = dataclasses.replace(arrivals.training, schedule=constant)
    while bool(present.any()):
        try:
            here = arrivals.among(present, Memory.of({}))
            trained = here.train(theta.contiguous(), t, training=training)
            break
        except Diverged as error:
            present[list(error.users)] = False
    else:
        trained = theta
    return torch.where(present.to(theta.device)[:, None], trained, torch.nan)


def over_seeds(each: Sequence[ByWhen | None]) -> ByWhen | None:
    """The mean of several runs' :attr:`Run.newcomers`; None where a run has none."""
    found = [one for one in each if one is not None]
    if not found or len(found) < len(each):
        return None
    return {
        when: {who: float(np.mean([one[when][who] for one in found])) for who in ("mean", "worst")}
        for when in WHEN
    }
