"""The recommended number of streams: constraints, trade-offs, reasons."""

import numpy as np
import pytest

from ucfl import wireless
from ucfl.collaboration import stream_choices
from ucfl.errors import UcflError
from ucfl.runs.planning import worth_function
from ucfl.wireless import Limits, Traffic


def grouped(groups=3, each=4, noise=0.05, seed=0):
    """W of users in clear groups."""
    rng = np.random.default_rng(seed)
    member = np.eye(groups).repeat(each, 0)
    weights = member @ member.T + noise * rng.random((groups * each, groups * each))
    return weights / weights.sum(1, keepdims=True)


def plan(system="wired", tradeoff="silhouette", own_weight=0.0, choices=None, **limits):
    choices = stream_choices(grouped()) if choices is None else choices
    network = wireless.find(system).serving(12, 1000)
    worth = worth_function(tradeoff, 12)
    return wireless.plan(
        choices,
        network,
        1000,
        worth=worth,
        name=tradeoff,
        limits=Limits(**limits),
        own_weight=own_weight,
    )


def test_it_recommends_the_true_groups_and_says_why():
    found = plan()
    assert found.recommended.streams == 3
    assert "3 streams: silhouette is highest there" in found.reason
    assert "5 T_dl, 1.67 times FedAvg's, where 12 streams would take 14 T_dl" in found.reason
    assert [option.streams for option in found.options] == list(range(1, 13))


def test_a_difference_that_rounding_hides_is_not_said():
    """A model of a thousand bytes takes a cell no time: computing is the whole round."""
    found = plan("urban-micro:t_min=1000s", max_streams=1)
    times = [f"{option.round_time:.3g}" for option in found.options]
    assert times[0] == times[-1]
    assert "would take" not in found.reason


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


def test_one_stream_takes_as_long_as_fedavg():
    alone = {1: (0.0, np.zeros(12, int))}
    assert "T_dl, as long as FedAvg's;" in plan(choices=alone).reason


def test_ones_own_trade_off(monkeypatch, tmp_path):
    (tmp_path / "mine_tradeoff.py").write_text(
        "def five(k, s, slowdown):\n    return -abs(k - 5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plan(tradeoff="mine_tradeoff:five").recommended.streams == 5


def test_ones_own_trade_off_is_asked_about_streams_alone_and_gives_numbers(tmp_path, monkeypatch):
    (tmp_path / "other_tradeoff.py").write_text(
        "def each(k, s, slowdown):\n    return s / k\n"
        "def lost(k, s, slowdown):\n    return float('nan')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plan(tradeoff="other_tradeoff:each", own_weight=0.99).recommended.streams == 0
    with pytest.raises(UcflError, match="other_tradeoff:lost is no number for k = 1"):
        plan(tradeoff="other_tradeoff:lost")


def test_streams_in_seconds_and_joules():
    found = plan("urban-macro")
    assert found.unit == "s"
    assert all(option.joules > 0 for option in found.options)
    times = [option.round_time for option in found.options]
    assert times[-1] > times[0]


def test_the_default_trade_off_has_time_in_it():
    """Where a stream costs as much as a round, half the streams are worth more than all."""
    from ucfl.runs.planning import DEFAULT_TRADEOFF

    nearly_free, dear = "wired:rho=1000", "wired:rho=0.001:t_min=0"
    free = {o.streams: o for o in plan(nearly_free, DEFAULT_TRADEOFF).options}
    paid = {o.streams: o for o in plan(dear, DEFAULT_TRADEOFF).options}
    assert free[3].score == pytest.approx(free[3].silhouette, rel=0.01)
    assert paid[3].score == pytest.approx(paid[3].silhouette / 3, rel=0.01)
    # Two streams fit nearly as well as three, for two thirds of the time.
    close = {1: (0.0, np.zeros(12, int)), 2: (0.7, np.arange(12) % 2), 3: (0.8, np.arange(12) % 3)}
    assert plan(nearly_free, DEFAULT_TRADEOFF, choices=close).recommended.streams == 3
    assert plan(dear, DEFAULT_TRADEOFF, choices=close).recommended.streams == 2
    assert plan(dear, "silhouette", choices=close).recommended.streams == 3


def test_users_who_learn_from_nobody_need_no_stream():
    found = plan(own_weight=1.0)
    assert found.recommended.streams == 0
    assert found.recommended.round_time == 1  # computing alone
    assert "train alone (local)" in found.reason
    assert plan(own_weight=0.9).recommended.streams == 3


def test_a_round_that_does_not_wait_for_the_slowest():
    """One of twelve is left out: the round ends when the eleventh model is there."""
    found = plan("urban-micro:seed=3", leave_out=0.15)
    network = wireless.find("urban-micro:seed=3").serving(12, 1000)
    one = found.options[0]
    arrivals = np.sort(network.arrivals(Traffic(1, 1), np.ones(12)))
    assert one.without_slowest == pytest.approx(arrivals[10])  # ⌈0.85 · 12⌉ = 11
    assert one.without_slowest < one.round_time
    assert one.round_time == pytest.approx(arrivals[11])
    between = (one.without_slowest + one.round_time) / 2
    with pytest.raises(UcflError, match="no number of streams meets"):
        plan("urban-micro:seed=3", deadline=between)
    assert plan("urban-micro:seed=3", deadline=between, leave_out=0.15).recommended.streams >= 1


def test_an_energy_budget_of_a_round_binds():
    most = [option.joules for option in plan("urban-macro").options]
    middle = float(np.median(most))
    found = plan("urban-macro", joules=middle)
    assert found.recommended.joules <= middle
    assert any(not option.affordable for option in found.options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(joules=-1), "energy of a round must be above 0"),
        (lambda: plan("urban-macro", joules=1e-9), "the cheapest round, with"),
        (lambda: plan(leave_out=1.0), "leave out less than all users, not 100%"),
        (
            lambda: plan(choices={1: (0.0, np.zeros(12, int)), 3: (0.5, np.arange(12) % 2)}),
            "3 streams need a listener each, and 2 have one",
        ),
        (lambda: plan(max_streams=13), "13 streams do not fit 12 users"),
        (lambda: plan(max_streams=0), "0 streams do not fit"),
        (lambda: plan(deadline=-1), "deadline"),
        (lambda: plan(deadline=2), "the shortest round, with 1 stream, takes 3 T_dl"),
        (lambda: plan(tradeoff="silhouete"), "unknown trade-off"),
        (lambda: plan(tradeoff="silhouette:1"), "takes no number"),
        (lambda: plan(tradeoff="silhouette-per-time:x"), "write a number"),
        (lambda: plan(tradeoff="silhouette-per-time:nan"), "write a number"),
        (lambda: plan(tradeoff="silhouette-minus-cost:inf"), "write a number"),
        (lambda: plan(tradeoff="nowhere:function"), "could not be loaded"),
    ],
)
def test_bad_values_get_one_sentence(make, words):
    with pytest.raises(UcflError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
