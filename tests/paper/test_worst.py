"""The worst user by every definition, against arithmetic by hand."""

from dataclasses import replace

import numpy as np
import pytest

from paper.making import result
from ucfl.paper import EMBEDDED, PAPER, worst
from ucfl.paper.printed import LABEL_SHIFT, TABLE_2

ENTRY = PAPER.entry(LABEL_SHIFT, "fedavg", rounds=2)
#: Of two runs: test and validation values of three users in rounds 0 to 2.
TEST = (
    np.array([[0, 0, 0], [50, 60, 70], [80, 40, 90]], dtype=float),
    np.array([[0, 0, 0], [90, 20, 70], [60, 90, 30]], dtype=float),
)
VALIDATION = (
    np.array([[0, 0, 0], [20, 90, 70], [80, 90, 90]], dtype=float),
    np.array([[0, 0, 0], [90, 80, 70], [60, 90, 60]], dtype=float),
)


def runs(kept=True):
    made = []
    for seed, (test, validation) in enumerate(zip(TEST, VALIDATION, strict=True)):
        record = result(ENTRY, seed, users=3)
        sizes = {"test_sizes": [10, 10, 20], "validation_sizes": [10, 30, 10]} if kept else {}
        made.append(
            replace(
                record,
                curves={**record.curves, "test_worst": test.min(1)},
                best_round=2,
                best=test[2],
                by_user={"test": test, "validation": validation} if kept else {},
                population=replace(record.population, **sizes),
            )
        )
    return made


def test_each_definition_by_hand():
    found = runs()
    assert worst.chosen(found) == pytest.approx((40 + 30) / 2)
    assert worst.highest(found) == pytest.approx((50 + 30) / 2)
    # Users of the first run on both halves: (35, 82.5, 70) and (80, 77.5, 90); of the second one
    # (90, 65, 70) and (60, 90, 40).
    assert worst.highest_of_both(found) == pytest.approx((77.5 + 65) / 2)
    assert worst.of_means(found) == pytest.approx(min(70, 65, 60))
    assert worst.of_means_of_both(found) == pytest.approx(min(70, 83.75, 65))


def test_what_was_not_kept_is_not_guessed():
    found = runs(kept=False)
    assert worst.highest_of_both(found) is None
    assert worst.of_means_of_both([*found[:1], runs()[1]]) is None
    assert worst.of_means(found) == pytest.approx(60)


def test_the_table_counts_what_is_close():
    entry = PAPER.entry(LABEL_SHIFT, "fedavg")
    printed = TABLE_2[LABEL_SHIFT]["fedavg"].mean
    near = result(entry, worst=printed - 1.9, mean=printed + 2.1)
    table = worst.side_by_side(PAPER, {entry: [near]})
    assert table.rows[-1][3:8] == ["1 of 1", "1 of 1", "0 of 0", "0 of 1", "0 of 0"]
    assert len(table.rows) == 1 + sum(map(len, TABLE_2.values()))
    assert len(worst.table2_shown(PAPER, {}).tables) == 2
    assert len(worst.table2_shown(EMBEDDED, {}).tables) == 1  # nothing is printed of stand-ins
