"""The adaptive method's goals: held, broken or not measured, each by cells made for it."""

import pytest

from paper.making import result
from ucfl.paper import PAPER
from ucfl.paper.beyond import goals
from ucfl.paper.figures import beyond as drawn
from ucfl.paper.items import ADAPTIVE, ITEMS, sweep_entries
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.paper.tables import beyond as table

STREAMS = {"user-centric": 100.0, "oracle": 4.0, ADAPTIVE: 4.0}


def made(**changes):
    """All rise evenly: adaptive and oracle to 80%, FedAvg to 72%, the rest to 75%."""
    means = {ADAPTIVE: 80.0, "oracle": 80.0, "fedavg": 72.0} | changes
    return {
        entry: [
            result(
                entry,
                mean=means.get(entry.algorithm, 75.0),
                worst=means.get(f"worst {entry.algorithm}", 60.0),
                streams=STREAMS.get(entry.algorithm, 1.0),
            )
        ]
        for entry in ITEMS["beyond"].entries(PAPER)
    }


def goal(cells, *words):
    (found,) = [c for c in goals(PAPER, cells) if all(word in c.claim for word in words)]
    return found


def test_without_cells_no_goal_is_reached():
    assert {claim.holds for claim in goals(PAPER, {})} == {None}


@pytest.mark.parametrize("scenario", ["covariate", "CIFAR-10"])
def test_it_must_stand_beside_the_oracle_with_its_worst_user_too(scenario):
    assert goal(made(), scenario, "oracle").holds is True
    assert goal(made(oracle=80.6), scenario, "oracle").holds is False
    assert goal(made(**{"worst oracle": 61.5}), scenario, "oracle").holds is False


def test_it_must_be_as_good_as_the_best_width():
    assert goal(made(), "width").holds is True
    assert goal(made(fedavg=78.5), "width").holds is False
    cells = made()
    entry = sweep_entries(PAPER)[8]
    cells[entry] = [result(entry, mean=80.7)]
    assert goal(cells, "width").holds is False
    assert "h = 8: 80.7" in goal(cells, "width").figures


def test_it_must_be_ahead_on_every_network():
    for system in ("slow-uplink", "fast-uplink"):
        assert goal(made(fedavg=70.0, **{ADAPTIVE: 140.0}), f"{system}:").holds is True
    # Four streams to wire are dear: FedAvg gets as far with one.
    assert goal(made(fedavg=80.0), "wired:").holds is False
    assert goal(made(**{ADAPTIVE: 69.0}), "slow-uplink:").holds is False


def test_table_and_panels_have_everything():
    rows = table(PAPER, made())
    assert {row.scenario for row in rows} == {LABEL_SHIFT, COVARIATE_SHIFT, CONCEPT_SHIFT}
    assert {"Adaptive", "Adaptive, worst user"} <= {row.method for row in rows}
    assert set(drawn(PAPER, made())) == {LABEL_SHIFT, COVARIATE_SHIFT, CONCEPT_SHIFT, "widths"}
