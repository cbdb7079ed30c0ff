"""Who learns from whom, read from the runs that measured it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ucfl.collaboration import Diagnosis, fixed_streams
from ucfl.collaboration.streams import NEARLY, fewest
from ucfl.runs import Record
from ucfl.runs.planning import precedence

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """Who learns from whom, as a run measured it: W, streams, the silhouette of each k from 1 on.

    ``labels`` are the run's own streams; where it has one for each user, those that are suggested
    (``own`` says which).
    """

    of: str
    weights: Floats
    labels: NDArray[np.int64]
    own: bool
    silhouettes: Floats
    suggested: int
    reason: str

    def own_shares(self) -> list[float]:
        """How much of each stream's mixture comes from its own users."""
        members = [self.labels == stream for stream in range(int(self.labels.max()) + 1)]
        return [float(self.weights[np.ix_(here, here)].sum(1).mean()) for here in members]


def collaboration(record: Record) -> Panel | None:
    """What the run's collaboration round found; None for methods without one."""
    found = record.collaboration
    if found is None or found.weights is None or found.silhouettes is None:
        return None
    weights = found.weights.double().numpy()
    silhouettes = found.silhouettes.double().numpy()
    scores = dict(enumerate(silhouettes.tolist(), start=1))
    suggested = fewest(scores, NEARLY)
    labels = None if found.labels is None else found.labels.numpy()
    own = labels is not None and len(np.unique(labels)) < len(weights)
    if labels is None or not own:
        labels = fixed_streams(weights, suggested, seed=record.seed).labels
    diagnosis = Diagnosis(len(weights), found.spread, suggested, scores[suggested])
    return Panel(
        of=record.label,
        weights=weights,
        labels=labels,
        own=own,
        silhouettes=silhouettes,
        suggested=suggested,
        reason=_reason(silhouettes, suggested, str(diagnosis)),
    )


def panels(records: Iterable[Record]) -> dict[int, list[Panel]]:
    """By seed, those of the methods that measured W; first the one that ``ucfl plan`` plans for."""
    learnt = [
        (precedence(one.algorithm, measured), one)
        for one in records
        if (measured := one.collaboration) is not None
    ]
    found: dict[int, list[Panel]] = {}
    for _, one in sorted(learnt, key=lambda pair: pair[0]):
        if (panel := collaboration(one)) is not None:
            found.setdefault(one.seed, []).append(panel)
    return found


def _reason(silhouettes: Floats, suggested: int, described: str) -> str:
    highest = int(silhouettes.argmax()) + 1
    if highest == suggested:
        return described
    return (
        f"{described} The silhouette of k = {highest} is higher by "
        f"{silhouettes[highest - 1] - silhouettes[suggested - 1]:.3f}, less than the {NEARLY:g} "
        "that more streams must bring."
    )
