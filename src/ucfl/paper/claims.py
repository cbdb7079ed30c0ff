"""What the paper claims, checked against measured cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ucfl import wireless
from ucfl.paper.cells import Result
from ucfl.paper.items import TIMED, Form
from ucfl.paper.printed import (
    CONCEPT_SHIFT,
    COVARIATE_SHIFT,
    LABEL_SHIFT,
    METHODS,
    PROPOSED,
    SCENARIOS,
    TABLE_1,
    TABLE_2,
)
from ucfl.paper.reproduce import Measured
from ucfl.paper.tables import Spread, spread, table1

#: The accuracy in percent that methods race to (sec. V-E), and how many cells must agree.
TARGET = 70.0
ENOUGH = 20
#: How close the fewest streams that fit must come to the oracle, in points.
CLOSE = 2.0


@dataclass(frozen=True)
class Claim:
    """A claim, whether it holds in the measured cells (None: they are not all there), and why."""

    claim: str
    holds: bool | None
    figures: str

    @property
    def answer(self) -> str:
        """Yes, no, or not measured."""
        return "not measured" if self.holds is None else "yes" if self.holds else "no"


def claims(form: Form, measured: Measured) -> list[Claim]:
    """All of them, in the paper's order."""
    return [
        most_cells_agree(form, measured),
        *(proposed_is_best(form, measured, scenario) for scenario in SCENARIOS),
        *(
            four_streams_match_the_oracle(form, measured, s)
            for s in (COVARIATE_SHIFT, CONCEPT_SHIFT)
        ),
        fedavg_is_below_local(form, measured),
        *(worst_user_is_best_served(form, measured, scenario) for scenario in SCENARIOS),
        silhouette_falls(form, measured),
        *(silhouette_peaks_at_four(form, measured, s) for s in (COVARIATE_SHIFT, CONCEPT_SHIFT)),
        proposed_is_first_on_a_slow_uplink(form, measured),
        four_streams_lead_on_wires(form, measured),
    ]


def most_cells_agree(form: Form, measured: Measured) -> Claim:
    """Table I as a whole."""
    text = f"Table I: at least {ENOUGH} of the 26 printed values are met (2 points or their std)"
    there = [row for row in table1(form, measured) if row.printed and row.best]
    met = [row for row in there if row.verdict != "miss"]
    misses = [f"{row.method} ({row.scenario})" for row in there if row.verdict == "miss"]
    figures = f"{len(met)} of {len(there)} measured values; misses: {', '.join(misses) or 'none'}"
    if len(there) < 26 and len(met) < ENOUGH <= len(met) + 26 - len(there):
        return Claim(text, None, figures)
    return Claim(text, len(met) >= ENOUGH, figures)


def proposed_is_best(form: Form, measured: Measured, scenario: str) -> Claim:
    """Mean accuracy against every method of Table I that is not told the groups."""
    text = f"{form.title(scenario)}: the proposed method is best, or within one std of the best"
    found = _spreads(form, measured, scenario, TABLE_1[scenario], "mean")
    if found is None:
        return _missing(text)
    own = found.pop(PROPOSED[scenario])
    rival = max(found, key=lambda name: found[name].mean)
    return Claim(
        text,
        own.mean >= found[rival].mean - found[rival].std,
        f"{METHODS[PROPOSED[scenario]]} {own}; next best {METHODS[rival]} {found[rival]}",
    )


def four_streams_match_the_oracle(form: Form, measured: Measured, scenario: str) -> Claim:
    """As good as knowing the groups."""
    text = f"{form.title(scenario)}: k = 4 matches the oracle within {CLOSE:g} points"
    names = ("user-centric:streams=4", "oracle")
    found = _spreads(form, measured, scenario, names, "mean", oracle=True)
    if found is None:
        return _missing(text)
    own, oracle = (found[name] for name in names)
    return Claim(text, own.mean >= oracle.mean - CLOSE, f"k = 4 {own}; oracle {oracle}")


def fedavg_is_below_local(form: Form, measured: Measured) -> Claim:
    """Collaboration between users with permuted labels harms."""
    text = f"{form.title(CONCEPT_SHIFT)}: FedAvg is below local training"
    found = _spreads(form, measured, CONCEPT_SHIFT, ("fedavg", "local"), "mean")
    if found is None:
        return _missing(text)
    fedavg, local = found["fedavg"], found["local"]
    return Claim(text, fedavg.mean < local.mean, f"FedAvg {fedavg}; local {local}")


def worst_user_is_best_served(form: Form, measured: Measured, scenario: str) -> Claim:
    """Table II, against every method in it that is not told the groups."""
    text = f"{form.title(scenario)}: the proposed method has the highest worst-user accuracy"
    found = _spreads(form, measured, scenario, TABLE_2[scenario], "worst")
    if found is None:
        return _missing(text)
    own = found.pop(PROPOSED[scenario])
    rival = max(found, key=lambda name: found[name].mean)
    return Claim(
        text,
        own.mean >= found[rival].mean,
        f"{METHODS[PROPOSED[scenario]]} {own}; next best {METHODS[rival]} {found[rival]}",
    )


def silhouette_falls(form: Form, measured: Measured) -> Claim:
    """Label shift has no clusters. k = 1 and k = m have no silhouette, so k = 2 … m − 1 count."""
    text = f"{form.title(LABEL_SHIFT)}: the silhouette falls with k"
    scores = mean_silhouettes(measured.get(form.entry(LABEL_SHIFT, "user-centric"), ()))
    if scores is None:
        return _missing(text)
    inner = scores[1:-1]
    rises = np.diff(inner) > 0
    figures = (
        f"from {inner[0]:.3f} at k = 2 to {inner[-1]:.3f} at k = {len(inner) + 1}, falling at "
        f"{int((~rises).sum())} of {len(rises)} steps"
    )
    return Claim(text, not rises.any(), figures)


def silhouette_peaks_at_four(form: Form, measured: Measured, scenario: str) -> Claim:
    """The number of true groups."""
    text = f"{form.title(scenario)}: the silhouette peaks at k = 4"
    scores = mean_silhouettes(measured.get(form.entry(scenario, "user-centric"), ()))
    if scores is None:
        return _missing(text)
    peak = int(scores.argmax()) + 1
    figures = f"highest at k = {peak} ({scores[peak - 1]:.3f})"
    return Claim(text, peak == 4, figures + (f"; k = 4 has {scores[3]:.3f}" if peak != 4 else ""))


def proposed_is_first_on_a_slow_uplink(form: Form, measured: Measured) -> Claim:
    """Against every method in the figure that is not told the groups."""
    text = f"slow-uplink: the proposed method is first to {TARGET:g}%"
    times = times_to(form, measured, "slow-uplink")
    if times is None:
        return _missing(text)
    times.pop("oracle")
    first = min(times, key=lambda name: times[name])
    holds = first.startswith("user-centric") and math.isfinite(times[first])
    return Claim(text, holds, _race(times))


def four_streams_lead_on_wires(form: Form, measured: Measured) -> Claim:
    """Where the downlink is as dear as the uplink, streams must be few."""
    text = f"wired: k = 4 reaches {TARGET:g}% before k = m"
    times = times_to(form, measured, "wired")
    if times is None:
        return _missing(text)
    few, all_ = times["user-centric:streams=4"], times["user-centric"]
    return Claim(text, few < all_, _race(times))


def mean_silhouettes(results: Sequence[Result]) -> NDArray[np.float64] | None:
    """Of k = 1, 2, … over the seeds, as far as every seed goes."""
    scores = [r.silhouettes for r in results if r.silhouettes is not None]
    if not scores:
        return None
    shortest = min(map(len, scores))
    mean: NDArray[np.float64] = np.mean([s[:shortest] for s in scores], axis=0)
    return mean


def timed_curve(
    results: Sequence[Result], system: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each round ends in T_dl, and the mean test accuracy then, over the seeds."""
    times = []
    for result in results:
        users = int(result.about["users"])
        network = wireless.SYSTEMS[system]
        times.append(network.elapsed(result.start_traffic, result.traffic, users, result.labels))
    return np.mean(times, axis=0), np.mean([r.curves["test_mean"] for r in results], axis=0)


def times_to(form: Form, measured: Measured, system: str) -> dict[str, float] | None:
    """When the mean accuracy of each timed method first is the target; infinite if never."""
    times = {}
    for name in TIMED:
        results = measured.get(form.entry(COVARIATE_SHIFT, name), ())
        if not results:
            return None
        when, accuracy = timed_curve(results, system)
        reached = np.flatnonzero(accuracy >= TARGET)
        times[name] = float(when[reached[0]]) if len(reached) else math.inf
    return times


def _race(times: dict[str, float]) -> str:
    ordered = sorted(times, key=lambda name: times[name])
    words = [
        f"{METHODS[name]} {'never' if math.isinf(times[name]) else format(times[name], '.0f')}"
        for name in ordered
    ]
    return f"time in T_dl: {', '.join(words)}"


def _spreads(
    form: Form,
    measured: Measured,
    scenario: str,
    names: Iterable[str],
    who: str,
    oracle: bool = False,
) -> dict[str, Spread] | None:
    """The methods' accuracies at the validation-chosen round; None if one has no cell."""
    found = {}
    for name in names:
        if name == "oracle" and not oracle:
            continue
        value = spread(measured.get(form.entry(scenario, name), ()), who, "best")
        if value is None:
            return None
        found[name] = value
    return found


def _missing(text: str) -> Claim:
    return Claim(text, None, "some of its cells are not there yet")
