"""What the paper claims, checked against measured cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucfl import wireless
from ucfl.collaboration.streams import NEARLY
from ucfl.paper.items import COVARIATE_LABEL_SHIFT, TIMED, Form
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
from ucfl.paper.tables import CLOSE as TWO_SIDED
from ucfl.paper.tables import Spread, spread, table1
from ucfl.runs import Record, curve

#: The accuracy in percent that methods race to (sec. V-D), and how many cells must agree.
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
        *(parallel_form_leads(form, measured, s) for s in (LABEL_SHIFT, COVARIATE_LABEL_SHIFT)),
    ]


def most_cells_agree(form: Form, measured: Measured) -> Claim:
    """Table I as a whole."""
    text = f"Table I: at least {ENOUGH} of the 26 printed values are met (2 points or their std)"
    there = [row for row in table1(form, measured) if row.printed and row.best]
    met = [row for row in there if row.verdict != "miss"]
    misses = [f"{row.method} ({row.scenario})" for row in there if row.verdict == "miss"]
    close = sum(row.is_close for row in there)
    figures = f"{len(met)} of {len(there)} measured values; misses: {', '.join(misses) or 'none'}"
    figures += f"; within {TWO_SIDED:g} points on either side: {close}"
    if len(there) < 26 and len(met) < ENOUGH <= len(met) + 26 - len(there):
        return Claim(text, None, figures)
    return Claim(text, len(met) >= ENOUGH, figures)


def proposed_is_best(form: Form, measured: Measured, scenario: str) -> Claim:
    """Mean accuracy against every method of Table I that is not told the groups."""
    text = f"{form.title(scenario)}: the proposed method is best, or within one std of the best"
    return _against(form, measured, scenario, TABLE_1[scenario], "mean", text, slack=1.0)


def four_streams_match_the_oracle(form: Form, measured: Measured, scenario: str) -> Claim:
    """As good as knowing the groups."""
    text = f"{form.title(scenario)}: k = 4 matches the oracle within {CLOSE:g} points"
    own = best(form, measured, scenario, "user-centric:streams=4", "mean")
    oracle = best(form, measured, scenario, "oracle", "mean")
    if own is None or oracle is None:
        return missing(text)
    return Claim(text, own.mean >= oracle.mean - CLOSE, f"k = 4 {own}; oracle {oracle}")


def fedavg_is_below_local(form: Form, measured: Measured) -> Claim:
    """Collaboration between users with permuted labels harms."""
    text = f"{form.title(CONCEPT_SHIFT)}: FedAvg is below local training"
    fedavg = best(form, measured, CONCEPT_SHIFT, "fedavg", "mean")
    local = best(form, measured, CONCEPT_SHIFT, "local", "mean")
    if fedavg is None or local is None:
        return missing(text)
    return Claim(text, fedavg.mean < local.mean, f"FedAvg {fedavg}; local {local}")


def worst_user_is_best_served(form: Form, measured: Measured, scenario: str) -> Claim:
    """Table II, against every method in it that is not told the groups."""
    text = f"{form.title(scenario)}: the proposed method has the highest worst-user accuracy"
    return _against(form, measured, scenario, TABLE_2[scenario], "worst", text, slack=0.0)


def silhouette_falls(form: Form, measured: Measured) -> Claim:
    """Label shift has no clusters. k = 1 and k = m have no silhouette, so k = 2 … m − 1 count.

    Here and below, silhouettes within 0.01 are equal, as they are where streams are chosen.
    """
    text = f"{form.title(LABEL_SHIFT)}: the silhouette falls with k"
    results = measured.get(form.entry(LABEL_SHIFT, "user-centric"), ())
    scores = mean_silhouettes(results)
    if scores is None:
        return missing(text)
    inner = scores[1:-1]
    steepest = float(np.diff(inner).max())
    figures = f"from {inner[0]:.3f} at k = 2 to {inner[-1]:.3f} at k = {len(inner) + 1}; " + (
        f"largest step up {steepest:.3f}" if steepest > 0 else "no step up"
    )
    figures += _seeds(results)
    return Claim(text, steepest <= NEARLY and bool(inner[0] == inner.max()), figures)


def silhouette_peaks_at_four(form: Form, measured: Measured, scenario: str) -> Claim:
    """The number of true groups."""
    text = f"{form.title(scenario)}: the silhouette peaks at k = 4"
    results = measured.get(form.entry(scenario, "user-centric"), ())
    scores = mean_silhouettes(results)
    if scores is None:
        return missing(text)
    peak = int(scores.argmax())
    fewest = int(np.flatnonzero(scores >= scores[peak] - NEARLY)[0])
    figures = f"highest at k = {peak + 1} ({scores[peak]:.3f})"
    if peak != 3:
        figures += f"; k = 4 has {scores[3]:.3f} (within {NEARLY:g} counts as equal)"
    return Claim(text, fewest == 3, figures + _seeds(results))


def proposed_is_first_on_a_slow_uplink(form: Form, measured: Measured) -> Claim:
    """Against every method in the figure that is not told the groups."""
    text = f"slow-uplink: the proposed method is first to {TARGET:g}%"
    times = times_to(form, measured, "slow-uplink")
    times.pop("oracle", None)
    if not {"user-centric", "user-centric:streams=4"} <= set(times):
        return missing(text)
    first = min(times, key=lambda name: times[name])
    holds = first.startswith("user-centric") and math.isfinite(times[first])
    unknown = [METHODS[name] for name in TIMED if name != "oracle" and name not in times]
    figures = _race(times) + (f"; not measured: {', '.join(unknown)}" if unknown else "")
    return Claim(text, None if holds and unknown else holds, figures)


def four_streams_lead_on_wires(form: Form, measured: Measured) -> Claim:
    """Where the downlink is as dear as the uplink, streams must be few."""
    text = f"wired: k = 4 reaches {TARGET:g}% before k = m"
    times = times_to(form, measured, "wired")
    few, all_ = times.get("user-centric:streams=4"), times.get("user-centric")
    if few is None or all_ is None:
        return missing(text)
    return Claim(text, few < all_, _race(times))


def parallel_form_leads(form: Form, measured: Measured, scenario: str) -> Claim:
    """It minimises what the proposed method only approximates (sec. V-E)."""
    text = f"{form.title(scenario)}: the parallel form is no worse than the proposed method"
    entries = [form.entry(scenario, name) for name in ("parallel-user-centric", "user-centric")]
    if not all(measured.get(entry) for entry in entries):
        return missing(text)
    after = min(entry.scenario.rounds for entry in entries)
    parallel, own = (
        Spread.over([float(r.curves["test_mean"][after]) for r in measured[entry]])
        for entry in entries
    )
    figures = f"after {after} rounds: parallel {parallel}; proposed, k = m {own}"
    return Claim(text, parallel.mean >= own.mean, figures)


def silhouettes(record: Record) -> Tensor | None:
    """Those of a record's collaboration round, if it has one."""
    return None if record.collaboration is None else record.collaboration.silhouettes


def mean_silhouettes(results: Sequence[Record]) -> NDArray[np.float64] | None:
    """Of k = 1, 2, … over the seeds, as far as every seed goes."""
    scores = [found.numpy() for r in results if (found := silhouettes(r)) is not None]
    if not scores:
        return None
    shortest = min(map(len, scores))
    mean: NDArray[np.float64] = np.mean([s[:shortest] for s in scores], axis=0)
    return mean


def times_to(form: Form, measured: Measured, system: str) -> dict[str, float]:
    """When each timed method that is measured first has the target; infinite if never."""
    found = {name: measured.get(form.entry(COVARIATE_SHIFT, name), ()) for name in TIMED}
    return {
        name: curve(results, wireless.SYSTEMS[system]).time_to(TARGET)
        for name, results in found.items()
        if results
    }


def _race(times: dict[str, float]) -> str:
    ordered = sorted(times, key=lambda name: times[name])
    words = [
        f"{METHODS[name]} {'never' if math.isinf(times[name]) else format(times[name], '.0f')}"
        for name in ordered
    ]
    return f"time in T_dl: {', '.join(words)}"


def _against(
    form: Form,
    measured: Measured,
    scenario: str,
    methods: Iterable[str],
    who: str,
    text: str,
    slack: float,
) -> Claim:
    """The proposed method against all others but the oracle, less ``slack`` deviations of theirs.

    It has lost as soon as one is ahead, and has won when all are measured.
    """
    own = best(form, measured, scenario, PROPOSED[scenario], who)
    others = [m for m in methods if m.split(":")[0] not in ("user-centric", "oracle")]
    values = {method: best(form, measured, scenario, method, who) for method in others}
    rivals = {method: value for method, value in values.items() if value is not None}
    if own is None or not rivals:
        return missing(text)
    rival = max(rivals, key=lambda method: rivals[method].mean)
    ahead = own.mean >= rivals[rival].mean - slack * rivals[rival].std
    figures = f"{METHODS[PROPOSED[scenario]]} {own}; best of the others {METHODS[rival]} "
    figures += str(rivals[rival])
    if unknown := [METHODS[method] for method in values if method not in rivals]:
        figures += f"; not measured: {', '.join(unknown)}"
    return Claim(text, None if ahead and unknown else ahead, figures)


def best(form: Form, measured: Measured, scenario: str, algorithm: str, who: str) -> Spread | None:
    """Over the seeds, at the validation-chosen round."""
    return spread(measured.get(form.entry(scenario, algorithm), ()), who, "best")


def _seeds(results: Sequence[Record]) -> str:
    return f" (mean of {len(results)} seed{'s' * (len(results) > 1)})"


def missing(text: str) -> Claim:
    """Of a claim that cannot be checked yet."""
    return Claim(text, None, "some of its cells are not there yet")
