"""The paper's claims: held, broken or not measured, each by cells made for it."""

import numpy as np
import pytest

from paper.making import result
from ucfl.paper import PAPER, claims
from ucfl.paper.claims import silhouettes, times_to
from ucfl.paper.items import ITEMS
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT, TABLE_1, TABLE_2
from ucfl.runs import curve
from ucfl.wireless import SYSTEMS, Traffic

FALLING = np.array([0, *np.linspace(0.2, 0.01, 18), 0])
PEAKED = np.array([0, 0.1, 0.2, 0.5, *np.linspace(0.4, 0.01, 15), 0])


def as_printed():
    """Cells with the printed values themselves."""
    cells = {}
    for scenario in TABLE_1:
        for entry in (e for e in ITEMS["table1"].entries(PAPER) if e.scenario.name == scenario):
            mean = TABLE_1[scenario].get(entry.algorithm)
            worst = TABLE_2[scenario].get(entry.algorithm)
            options = {
                "mean": mean.mean if mean else 60.0,
                "worst": worst.mean if worst else 30.0,
                "streams": {
                    "user-centric": 100.0,
                    "user-centric:streams=4": 4.0,
                    "fedfomo": 100.0,
                }.get(entry.algorithm, 1.0),
            }
            if entry.algorithm == "user-centric":
                options["silhouettes"] = FALLING if scenario == LABEL_SHIFT else PEAKED
            cells[entry] = [result(entry, **options)]
    return cells


def changed(scenario, algorithm, **options):
    cells = as_printed()
    entry = PAPER.entry(scenario, algorithm)
    made = cells[entry][0]
    fields = {"mean": made.value("mean", "best"), "worst": made.value("worst", "best")}
    fields |= {"streams": made.traffic[0, 0], "silhouettes": silhouettes(made)}
    cells[entry] = [result(entry, **(fields | options))]
    return cells


def by_text(cells, *words):
    (found,) = [c for c in claims(PAPER, cells) if all(word in c.claim for word in words)]
    return found


def test_without_cells_nothing_is_claimed():
    found = claims(PAPER, {})
    assert len(found) == 17
    assert {claim.holds for claim in found} == {None}
    assert {claim.answer for claim in found} == {"not measured"}


def test_the_printed_values_meet_themselves():
    claim = by_text(as_printed(), "26 printed values")
    assert claim.holds is True
    assert claim.figures == (
        "26 of 26 measured values; misses: none; within 2 points on either side: 26"
    )


def test_too_many_misses_are_said_with_their_names():
    cells = as_printed()
    for name in list(TABLE_1[CONCEPT_SHIFT])[:7]:
        entry = PAPER.entry(CONCEPT_SHIFT, name)
        cells[entry] = [result(entry, mean=5.0)]
    claim = by_text(cells, "26 printed values")
    assert claim.holds is False
    assert "19 of 26" in claim.figures
    assert "pFedMe (cifar10-concept-shift)" in claim.figures


def test_best_or_within_one_deviation_of_the_best():
    # As printed, FedProx leads by 0.2 under label shift: one seed has no deviation to hide in.
    assert by_text(as_printed(), "label shift (m = 20)", "is best").holds is False
    entry = PAPER.entry(LABEL_SHIFT, "fedprox:tested=local")
    cells = as_printed() | {entry: [result(entry, s, mean=m) for s, m in enumerate((79.3, 79.9))]}
    assert by_text(cells, "label shift (m = 20)", "is best").holds is True
    assert by_text(as_printed(), "(m = 100)", "is best").holds is True
    cells = changed(CONCEPT_SHIFT, "pfedme", mean=60.0)
    assert by_text(cells, "CIFAR-10", "is best").holds is False
    cells = changed(CONCEPT_SHIFT, "user-centric", mean=60.0)  # a stream each is no rival
    assert by_text(cells, "CIFAR-10", "is best").holds is True


def test_a_race_with_somebody_missing_can_be_lost_but_not_won():
    cells = as_printed()
    del cells[PAPER.entry(CONCEPT_SHIFT, "pfedme")]
    claim = by_text(cells, "CIFAR-10", "is best")
    assert claim.holds is None
    assert "not measured: pFedMe" in claim.figures
    lost = changed(CONCEPT_SHIFT, "ditto", mean=60.0)
    del lost[PAPER.entry(CONCEPT_SHIFT, "pfedme")]
    assert by_text(lost, "CIFAR-10", "is best").holds is False


def test_four_streams_and_the_oracle():
    for word in ("(m = 100)", "CIFAR-10"):
        assert by_text(as_printed(), word, "matches the oracle").holds is True
    cells = changed(CONCEPT_SHIFT, "oracle", mean=51.2)
    assert by_text(cells, "CIFAR-10", "matches the oracle").holds is False


def test_fedavg_below_local():
    assert by_text(as_printed(), "below local").holds is True
    assert by_text(changed(CONCEPT_SHIFT, "fedavg", mean=40.0), "below local").holds is False


def test_the_worst_user():
    for word in ("label shift (m = 20)", "(m = 100)", "CIFAR-10"):
        assert by_text(as_printed(), word, "worst-user").holds is True
    cells = changed(COVARIATE_SHIFT, "cfl", worst=76.5)
    assert by_text(cells, "(m = 100)", "worst-user").holds is False


def test_silhouettes():
    assert by_text(as_printed(), "falls with k").holds is True
    for word in ("(m = 100)", "CIFAR-10"):
        assert by_text(as_printed(), word, "peaks").holds is True
    ripple, bump, five = FALLING.copy(), FALLING.copy(), PEAKED.copy()
    ripple[8] = ripple[7] + 0.009
    bump[8] = bump[7] + 0.02
    five[4] = five[3] + 0.009
    cases = [(ripple, LABEL_SHIFT, "falls", True), (bump, LABEL_SHIFT, "falls", False)]
    cases += [(five, CONCEPT_SHIFT, "peaks", True), (bump, CONCEPT_SHIFT, "peaks", False)]
    for scores, scenario, word, holds in cases:
        cells = changed(scenario, "user-centric", silhouettes=scores)
        names = ("CIFAR-10",) if scenario == CONCEPT_SHIFT else ()
        assert by_text(cells, word, *names).holds is holds


def test_time_is_counted_round_by_round():
    entry = PAPER.entry(COVARIATE_SHIFT, "user-centric:streams=4")
    made = [result(entry, streams=4.0, mean=80.0)]
    found = curve(made, "slow-uplink")
    assert found.times[10] - found.times[9] == pytest.approx(
        SYSTEMS["slow-uplink"].round_time(Traffic(4, 1), 4)
    )
    assert found.mean[-1] == pytest.approx(80)


def test_the_race_to_seventy_percent():
    # All rise evenly to what they end with, so most streams make for the longest rounds.
    assert by_text(as_printed(), "wired").holds is True
    few = changed(COVARIATE_SHIFT, "user-centric:streams=4", mean=60.0)
    assert times_to(PAPER, few, "wired")["user-centric:streams=4"] == np.inf
    assert by_text(few, "wired").holds is False
    slow = by_text(as_printed(), "slow-uplink")
    assert slow.holds is False  # FedAvg reaches 70.5 in the end, with the shortest rounds
    assert slow.figures.startswith("time in T_dl: FedAvg")
    cells = changed(COVARIATE_SHIFT, "fedavg", mean=65.0)
    assert by_text(cells, "slow-uplink").holds is True


def test_a_race_is_open_while_a_runner_that_might_win_is_missing():
    cells = changed(COVARIATE_SHIFT, "fedavg", mean=65.0)
    del cells[PAPER.entry(COVARIATE_SHIFT, "fedfomo")]
    claim = by_text(cells, "slow-uplink")
    assert claim.holds is None
    assert "not measured: FedFomo" in claim.figures


@pytest.mark.parametrize(("accuracy", "holds"), [(79.0, True), (60.0, False)])
def test_the_parallel_form_is_compared_after_as_many_rounds(accuracy, holds):
    entry = PAPER.entry(LABEL_SHIFT, "parallel-user-centric")
    own = PAPER.entry(LABEL_SHIFT, "user-centric")
    assert entry.scenario.rounds < own.scenario.rounds
    cells = as_printed()
    assert by_text(cells, "parallel form", "label shift (m = 20)").holds is None
    made = cells[own][0]
    made.curves["test_mean"][entry.scenario.rounds] = 70.0
    made.curves["test_mean"][-1] = 90.0
    claim = by_text(
        {**cells, entry: [result(entry, mean=accuracy)]}, "parallel form", "label shift (m = 20)"
    )
    assert claim.holds is holds
    assert claim.figures.startswith(f"after {entry.scenario.rounds} rounds")
    assert "70.0" in claim.figures
