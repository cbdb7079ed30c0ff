"""The recommended number of streams: constraints, trade-offs, reasons."""

import numpy as np
import pytest

from ucfl import wireless
from ucfl.collaboration import stream_choices
from ucfl.errors import UcflError
from ucfl.runs.planning import worth_function
from ucfl.wireless import SITES, SYSTEMS


def grouped(groups=3, each=4, noise=0.05, seed=0):
    """W of users in clear groups."""
    rng = np.random.default_rng(seed)
    member = np.eye(groups).repeat(each, 0)
    weights = member @ member.T + noise * rng.random((groups * each, groups * each))
    return weights / weights.sum(1, keepdims=True)


def plan(system="wired", tradeoff="silhouette", **constraints):
    choices = stream_choices(grouped())
    network = {**SYSTEMS, **SITES}[system].serving(12, 1000)
    worth = worth_function(tradeoff, 12)
    return wireless.plan(choices, network, 1000, worth=worth, name=tradeoff, **constraints)


def test_it_recommends_the_true_groups_and_says_why():
    found = plan()
    assert found.recommended.streams == 3
    assert "3 streams: silhouette is highest there" in found.reason
    assert "5 T_dl, 1.67 times FedAvg's, where 12 streams would take 14 T_dl" in found.reason
    assert [option.streams for option in found.options] == list(range(1, 13))


def test_constraints_bind():
    assert plan(max_streams=2).recommended.streams == 2
    assert plan(deadline=4.5).recommended.streams == 2  # 2 + 1 + 1
    assert plan(deadline=4.5).options[2].affordable is False
    assert "among the 2 that the constraints allow" in plan(deadline=4.5).reason
    assert plan(max_streams=1).recommended.streams == 1


def test_time_has_a_price_where_it_is_asked_for():
    scores = {o.streams: o.score for o in plan(tradeoff="silhouette-per-time").options}
    options = {o.streams: o for o in plan().options}
    assert scores[3] == pytest.approx(options[3].silhouette * 3 / 5)
    assert plan(tradeoff="silhouette-per-time:9").recommended.streams == 2
    # Where a stream costs next to nothing, the same price changes nothing.
    assert plan("urban-micro", "silhouette-per-time:9").recommended.streams == 3


def test_ones_own_trade_off(monkeypatch, tmp_path):
    (tmp_path / "mine_tradeoff.py").write_text(
        "def five(k, s, slowdown):\n    return -abs(k - 5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plan(tradeoff="mine_tradeoff:five").recommended.streams == 5


def test_streams_in_seconds_and_joules():
    found = plan("urban-macro")
    assert found.unit == "s"
    assert all(option.joules > 0 for option in found.options)
    times = [option.round_time for option in found.options]
    assert times[-1] > times[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(max_streams=13), "13 streams do not fit 12 users"),
        (lambda: plan(max_streams=0), "0 streams do not fit"),
        (lambda: plan(deadline=-1), "deadline"),
        (lambda: plan(deadline=2), "the shortest round, with 1 stream, takes 3 T_dl"),
        (lambda: plan(tradeoff="silhouete"), "unknown trade-off"),
        (lambda: plan(tradeoff="silhouette:1"), "takes no number"),
        (lambda: plan(tradeoff="silhouette-per-time:x"), "write a number"),
        (lambda: plan(tradeoff="nowhere:function"), "could not be loaded"),
    ],
)
def test_bad_values_get_one_sentence(make, words):
    with pytest.raises(UcflError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
