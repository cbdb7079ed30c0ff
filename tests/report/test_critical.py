"""Critical-difference diagrams: every rank where it belongs, and no name over another."""

import itertools

import pytest

from ucfl.algorithms import REGISTRY
from ucfl.errors import UcflError
from ucfl.report.critical import critical_difference
from ucfl.report.figures import DOUBLE, SINGLE, save

NAMES = [*REGISTRY, *(f"user-centric:streams={k}" for k in range(2, 30))][:25]
FEW = NAMES[:6]


def boxes(figure):
    """Where each text is, in pixels."""
    figure.canvas.draw()
    return {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}


def kind(figure, label):
    return [line for line in figure.axes[0].lines if line.get_label() == label]


@pytest.mark.parametrize("spread", [0.4, 0.01, 0])
@pytest.mark.parametrize("names", [NAMES, FEW, NAMES[:2]])
def test_no_text_is_over_another_or_outside(names, spread):
    average = {name: 3 + spread * i for i, name in enumerate(names)}
    figure = critical_difference(average, 2.5, [names[:2]])
    width, height = figure.canvas.get_width_height()
    found = boxes(figure)
    assert sum(any(name in text for name in names) for text in found) >= len(names)
    for box in found.values():
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    for one, other in itertools.combinations(found.values(), 2):
        assert not one.overlaps(other)


def test_leaders_start_at_the_ranks_and_bars_join_what_does_not_differ():
    average = {"fedavg": 2.75, "local": 1.5, "ditto": 3.25, "cfl": 2.5}
    figure = critical_difference(average, 1.1, [("local", "cfl"), ("cfl", "fedavg", "ditto")])
    starts = [line.get_xdata()[0] for line in kind(figure, "_leader")]
    assert sorted(starts) == sorted(average.values())
    bars = [line.get_xdata() for line in kind(figure, "_bar")]
    assert [bar[0] < low and bar[1] > high for bar, (low, high) in
            zip(bars, [(1.5, 2.5), (2.5, 3.25)], strict=True)] == [True, True]  # fmt: skip
    assert bars[0][1] < 2.75
    assert "critical difference 1.10" in boxes(figure)


def test_it_is_as_wide_as_columns_are(tmp_path):
    for names, width in ((FEW[:4], SINGLE), (NAMES, DOUBLE)):
        figure = critical_difference({name: 1.0 + i for i, name in enumerate(names)}, 2.0)
        assert figure.get_size_inches()[0] == pytest.approx(width)
    for suffix in (".pdf", ".svg"):
        one, two = (save(figure, tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
        assert one == two
    with pytest.raises(UcflError, match="two methods"):
        critical_difference({"fedavg": 1.0}, 1.0)
