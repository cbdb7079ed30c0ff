"""Beyond the paper: one setting for every federation, beside the oracle and the best fixed one."""

from __future__ import annotations

import math

from ucfl import wireless
from ucfl.paper.claims import TARGET, Claim, best, missing
from ucfl.paper.items import ADAPTIVE, GENEROUS, SWEPT, Form, sweep_entries
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.paper.reproduce import Measured
from ucfl.paper.tables import spread
from ucfl.runs import curve

#: Points under the oracle that are allowed: of the mean, and of the worst user.
UNDER_ORACLE, WORST_UNDER_ORACLE = 0.5, 1.0
#: Points over FedAvg that label shift must gain, and under the best fixed width that are allowed.
OVER_FEDAVG, UNDER_BEST_WIDTH = 2.0, 0.5


def goals(form: Form, measured: Measured) -> list[Claim]:
    """What the adaptive method was built for, at the validation-chosen round."""
    return [
        *(beside_the_oracle(form, measured, s) for s in (COVARIATE_SHIFT, CONCEPT_SHIFT)),
        beside_the_best_width(form, measured),
        *(ahead_on_air(form, measured, system) for system in wireless.SYSTEMS),
    ]


def beside_the_oracle(form: Form, measured: Measured, scenario: str) -> Claim:
    """With groups: as good as knowing them."""
    text = (
        f"{form.title(scenario)}: adaptive within {UNDER_ORACLE} points of the oracle, and its "
        f"worst user within {WORST_UNDER_ORACLE:g} point"
    )
    figures, near = [], True
    for who, under in (("mean", UNDER_ORACLE), ("worst", WORST_UNDER_ORACLE)):
        own = best(form, measured, scenario, ADAPTIVE, who)
        oracle = best(form, measured, scenario, "oracle", who)
        if own is None or oracle is None:
            return missing(text)
        near = near and own.mean >= oracle.mean - under
        figures.append(f"{who} {own} (oracle {oracle})")
    return Claim(text, near, ", ".join(figures))


def beside_the_best_width(form: Form, measured: Measured) -> Claim:
    """Without groups: as good as the width that a sweep finds."""
    text = (
        f"{form.title(LABEL_SHIFT)}: adaptive {OVER_FEDAVG:g} points over FedAvg, and within "
        f"{UNDER_BEST_WIDTH} of the best fixed width"
    )
    own, fedavg = (best(form, measured, LABEL_SHIFT, name, "mean") for name in (ADAPTIVE, "fedavg"))
    swept = {
        width: found
        for width, entry in sweep_entries(form).items()
        if (found := spread(measured.get(entry, ()), "mean", "best"))
    }
    if own is None or fedavg is None or len(swept) < len(SWEPT):
        return missing(text)
    first = max(swept, key=lambda width: swept[width].mean)
    holds = own.mean >= max(fedavg.mean + OVER_FEDAVG, swept[first].mean - UNDER_BEST_WIDTH)
    figures = f"{own}; FedAvg {fedavg}; best of the sweep h = {first}: {swept[first]}"
    return Claim(text, holds, figures)


def ahead_on_air(form: Form, measured: Measured, system: str) -> Claim:
    """Calibrations included: to the target, and to the accuracy that FedAvg ends with."""
    text = (
        f"{system}: adaptive reaches {TARGET:g}% and FedAvg's final accuracy before FedAvg and "
        "before k = m"
    )
    names = (ADAPTIVE, GENEROUS, "fedavg", "user-centric")
    found = {name: measured.get(form.entry(COVARIATE_SHIFT, name), ()) for name in names}
    curves = {name: curve(each, wireless.SYSTEMS[system]) for name, each in found.items() if each}
    if not {ADAPTIVE, "fedavg", "user-centric"} <= set(curves):
        return missing(text)
    targets = (TARGET, float(curves["fedavg"].mean[-1]))
    times = {name: [curve.time_to(target) for target in targets] for name, curve in curves.items()}
    holds = all(
        ours < min(fedavg, everyone) and math.isfinite(ours)
        for ours, fedavg, everyone in zip(
            times[ADAPTIVE], times["fedavg"], times["user-centric"], strict=True
        )
    )
    words = [
        f"{name} {' and '.join('never' if math.isinf(t) else format(t, '.0f') for t in each)}"
        for name, each in times.items()
    ]
    figures = f"times in T_dl to {TARGET:g}% and {targets[1]:.1f}%: {', '.join(words)}"
    return Claim(text, holds, figures)
