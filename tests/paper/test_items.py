"""Which cells each item needs, and in which order they are run."""

import itertools

import pytest

from ucfl.errors import UcflError
from ucfl.paper import ITEMS, PAPER, find, in_order
from ucfl.paper.items import COVARIATE_LABEL_SHIFT, LABEL_SHIFT_100
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT

EVERY = find(["all"])


def test_items_share_their_cells():
    cells = in_order(EVERY, PAPER, range(5))
    assert len(cells) == len(set(cells))
    tables = set(in_order(find(["table1"]), PAPER, range(5)))
    for name in ("table2", "fig-accuracy", "fig-clusters", "fig-silhouette", "fig-time"):
        assert set(in_order(find([name]), PAPER, range(5))) <= tables
    assert len(tables) == 5 * (26 + 12)


def test_seed_0_of_table_1_comes_first_and_dear_methods_last_in_it():
    cells = in_order(EVERY, PAPER, (0, 1))
    first = cells[:38]
    assert {cell.entry for cell in first} == set(ITEMS["table1"].entries(PAPER))
    assert {cell.seed for cell in cells[: len(cells) // 2]} == {0}
    dear = [cell.entry.algorithm == "pfedme:form=publication" for cell in first]
    assert dear == [False] * 35 + [True] * 3


def test_cells_of_one_scenario_and_seed_are_neighbours():
    """They share a federation then."""
    names = [cell.entry.scenario.name for cell in in_order(find(["table1"]), PAPER, (0,))]
    assert sum(a != b for a, b in itertools.pairwise(names)) <= 5


def test_settings_are_the_papers():
    label = PAPER.entry(LABEL_SHIFT, "user-centric").scenario
    assert (label.users, label.alpha, label.lr, label.rounds) == (20, 0.4, 0.1, 300)
    assert label.variance_batch == 100
    covariate = PAPER.entry(COVARIATE_SHIFT, "user-centric").scenario
    assert (covariate.users, covariate.alpha, covariate.variance_batch) == (100, 8, 1 / 3)
    assert PAPER.entry(CONCEPT_SHIFT, "user-centric").scenario.lr == 0.01
    assert PAPER.scenarios[COVARIATE_LABEL_SHIFT].users == 20
    many = PAPER.scenarios[LABEL_SHIFT_100]
    assert (many.users, many.alpha, many.points) == (100, 0.4, 125_000)
    swept = [entry.algorithm for entry in ITEMS["fig-batch"].entries(PAPER)]
    assert swept[0] == "user-centric:variance_batch=100.0"
    assert swept[4] == "user-centric:variance_batch=660.0"


def test_a_reduced_form_shares_no_cell_with_the_papers():
    reduced = PAPER.with_rounds(20)
    assert not {*in_order(EVERY, PAPER, (0,))} & {*in_order(EVERY, reduced, (0,))}
    assert "not comparable" in reduced.note
    assert not PAPER.note


def test_items_by_name():
    assert find([]) == EVERY == [item for item in ITEMS.values() if not item.apart]
    assert [item.name for item in find(["fig-time", "table1"])] == ["table1", "fig-time"]
    with pytest.raises(UcflError, match="did you mean 'table1'"):
        find(["table-1"])
