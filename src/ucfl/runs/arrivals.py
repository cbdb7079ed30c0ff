"""Newcomers: what a trained federation does for users that it never saw."""

from __future__ import annotations

import torch
from torch import Tensor

from ucfl.algorithms import Algorithm, State
from ucfl.errors import Diverged
from ucfl.federation import Federation
from ucfl.users import Users

#: When newcomers are evaluated: with the model that they get, and after a round of local training.
WHEN = ("before", "after")


def welcome(
    algorithm: Algorithm, fed: Federation, state: State, users: Users, t: int
) -> dict[str, Tensor] | None:
    """Their metrics [q] on test data by ``before_NAME`` and ``after_NAME``.

    None where the method has no model for them. ``after``: they train as others do in round t, and
    nothing is mixed. Every process does this for all of them.
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
    while bool(present.any()):
        try:
            trained = arrivals.among(present).train(theta.contiguous(), t)
            break
        except Diverged as error:
            present[list(error.users)] = False
    else:
        trained = theta
    return torch.where(present.to(theta.device)[:, None], trained, torch.nan)
