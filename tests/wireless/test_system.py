"""Formulas against Monte Carlo and against cases worked by hand."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucfl import wireless
from ucfl.errors import UcflError
from ucfl.wireless import SYSTEMS, Traffic, WirelessSystem
from ucfl.wireless.system import harmonic


@pytest.mark.parametrize("users", [1, 2, 3, 10, 20, 100, 1000, 10_000])
def test_the_expected_maximum_agrees_with_monte_carlo(users):
    """E[max] of m shifted exponentials, 10^5 draws of the maximum, within 1%.

    The maxima are drawn through their distribution function, F(t) = (1 − e^{−μ(t − T_min)})^m, for
    any m; the next test shows that it is the maximum's.
    """
    system = WirelessSystem(rho=2, t_min=0.7, mean_delay=1.9)
    uniform = np.random.default_rng(users).random(100_000)
    drawn = 0.7 - 1.9 * np.log(-np.expm1(np.log(uniform) / users))
    assert system.computing(users) == pytest.approx(drawn.mean(), rel=0.01)


@pytest.mark.parametrize("users", [1, 5, 100])
def test_and_with_users_drawn_one_by_one(users):
    system = WirelessSystem(rho=2, t_min=0.7, mean_delay=1.9)
    rng = np.random.default_rng(1)
    slowest = [(0.7 + rng.exponential(1.9, (1000, users))).max(1) for _ in range(100)]
    assert system.computing(users) == pytest.approx(np.concatenate(slowest).mean(), rel=0.01)


@pytest.mark.parametrize("users", [1, 7, 50])
def test_drawn_rounds_have_the_expected_mean(users):
    system = WirelessSystem(rho=4, t_min=1, mean_delay=1)
    traffic = Traffic(down=3, up=1, work=2)
    drawn = [system.round_time(traffic, users, draw=(5, t)) for t in range(20_000)]
    assert np.mean(drawn) == pytest.approx(system.round_time(traffic, users), rel=0.01)
    again = [system.round_time(traffic, users, draw=(5, t)) for t in range(10)]
    other = [system.round_time(traffic, users, draw=(6, t)) for t in range(10)]
    assert again == drawn[:10]
    assert other != again


def test_harmonic_numbers():
    assert harmonic(1) == pytest.approx(1)
    assert harmonic(4) == pytest.approx(25 / 12)
    assert harmonic(10_000) == pytest.approx(sum(1 / i for i in range(1, 10_001)), rel=1e-12)


def test_hand_worked_rounds():
    """m = 4: H_4 = 25/12."""
    slow, fast, wired = (SYSTEMS[name] for name in ("slow-uplink", "fast-uplink", "wired"))
    fedavg, personal = Traffic(1, 1), Traffic(down=4, up=1)
    assert slow.round_time(fedavg, 4) == pytest.approx(1 + 4 + 1 + 25 / 12)
    assert slow.round_time(personal, 4) == pytest.approx(4 + 4 + 1 + 25 / 12)
    assert fast.round_time(fedavg, 4) == 1 + 2 + 1
    assert wired.round_time(personal, 4) == 4 + 1 + 1
    parallel = Traffic(down=4, up=4, work=4)
    assert slow.round_time(parallel, 4) == pytest.approx(4 + 16 + 4 * (1 + 25 / 12))
    assert wired.round_time(Traffic(0, 0), 10_000) == 1


def test_elapsed_time_adds_up_from_the_start():
    wired = SYSTEMS["wired"]
    rounds = np.array([[1, 1, 1], [4, 1, 1], [4, 1, 1]])
    times = wired.elapsed(Traffic(1, 1, 0.5), rounds, users=20)
    assert times.tolist() == [2.5, 5.5, 11.5, 17.5]
    drawn = SYSTEMS["slow-uplink"].elapsed(Traffic(1, 1, 0.5), rounds, users=20, seed=3)
    longer = SYSTEMS["slow-uplink"].elapsed(
        Traffic(1, 1, 0.5), np.vstack([rounds, rounds]), users=20, seed=3
    )
    assert np.array_equal(longer[:4], drawn)


@given(
    st.floats(0.01, 100),
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(1, 10_000),
    st.integers(1, 50),
)
def test_more_of_anything_never_takes_less_time(rho, t_min, mean_delay, users, down):
    system = WirelessSystem(rho, t_min, mean_delay)
    time = system.round_time(Traffic(down, 1), users)
    assert system.round_time(Traffic(down + 1, 1), users) == pytest.approx(time + 1)
    assert system.round_time(Traffic(down, 2), users) == pytest.approx(time + rho)
    assert system.round_time(Traffic(down, 1), users + 1) >= time - 1e-9


def test_bytes_follow_the_model():
    traffic = Traffic(down=4, up=2)
    assert traffic.down_bytes(1000) == 4000
    assert traffic.up_bytes(1000, users=20) == 40_000


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WirelessSystem(0, 1, 1), "rho"),
        (lambda: WirelessSystem(-2, 1, 1), "above 0, not -2"),
        (lambda: WirelessSystem(math.nan, 1, 1), "rho"),
        (lambda: WirelessSystem(1, -1, 1), "t_min must be a number from 0 up, not -1"),
        (lambda: WirelessSystem(1, 1, math.inf), "mean_delay"),
        (lambda: Traffic(-1, 0), "down"),
        (lambda: SYSTEMS["wired"].round_time(Traffic(1, 1), 0), "at least one user"),
        (lambda: wireless.find("slow-uplnk"), "did you mean 'slow-uplink'"),
        (lambda: wireless.find("wired:rho=0"), "above 0"),
        (lambda: wireless.find("wired:rho=x"), "rho=x"),
        (lambda: wireless.find("wired:row=1"), "did you mean 'rho'"),
        (lambda: wireless.find("wired:rho"), "option=value"),
    ],
)
def test_bad_values_get_one_sentence(make, words):
    with pytest.raises(UcflError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_change_a_named_system():
    assert wireless.find("slow-uplink:rho=3") == WirelessSystem(3, 1, 1)
    assert wireless.find("wired") is not wireless.find("wired:t_min=2")


@pytest.mark.parametrize("name", wireless.NETWORKS)
def test_every_option_of_every_network_is_explained(name):
    network = wireless.NETWORKS[name]
    rows = {row.option: row for row in wireless.explained(network)}
    assert set(rows) == {field.name for field in dataclasses.fields(network)}
    assert all(row.words and row.allowed for row in rows.values())
    assert wireless.summary(network).startswith("in ")


def test_compressed_messages_in_the_papers_system():
    wired = SYSTEMS["wired"]
    small = wired.compressed(down=0.25, up=0.5)
    assert small.round_time(Traffic(4, 1), 20) == 4 / 4 + 1 + 0.5
    assert wired.compressed(1, 1) == wired
    with pytest.raises(UcflError, match="above 0"):
        wired.compressed(0, 1)


def test_energy_adds_up_over_rounds_for_those_who_take_part():
    cell = wireless.SITES["urban-micro"].serving(4, 100_000)
    start, rounds = Traffic(1, 1, 0.5), np.array([[1, 1, 1], [2, 1, 1]], dtype=float)
    streams = np.array([0, 0, 1, 1])
    spent = cell.energy(start, rounds, 4, streams)
    each = [cell.joules(t, 4, streams) for t in (start, Traffic(1, 1), Traffic(2, 1))]
    assert spent == pytest.approx(np.cumsum(each))
    here = np.array([[True] * 4, [True, False, False, True]])
    fewer = cell.energy(start, rounds, 4, streams, here)
    alone = cell.among(here[1]).joules(Traffic(2, 1), 2, np.array([0, 1]))
    assert fewer == pytest.approx(np.cumsum([*each[:2], alone]))
    assert np.isnan(SYSTEMS["wired"].energy(start, rounds, 4)).all()


def test_when_a_share_of_the_models_has_arrived():
    cell = wireless.SITES["urban-micro"].serving(20, 100_000)
    arrivals = np.sort(cell.arrivals(Traffic(1, 1), np.ones(20)))
    assert cell.arrived(Traffic(1, 1), 20, 0.9) == arrivals[17]
    assert cell.arrived(Traffic(1, 1), 20, 1.0) == arrivals[19]
    assert cell.arrived(Traffic(1, 1), 20, 1.0) == pytest.approx(cell.round_time(Traffic(1, 1), 20))
    assert SYSTEMS["wired"].arrived(Traffic(1, 1), 20, 0.5) == 3


def test_a_deadline_for_a_share_leaves_out_the_others_on_average():
    """Known mistake: everyone computed for the expected time, so nobody was ever slow."""
    slow, traffic = SYSTEMS["slow-uplink"], Traffic(1, 1)
    assert slow.arrived(traffic, 20, 1.0) == pytest.approx(slow.round_time(traffic, 20))
    # T_min + (H_20 - H_2) / mu, one broadcast, four T_dl up.
    by_hand = 1 + sum(1 / n for n in range(3, 21)) + 1 + 4
    assert slow.arrived(traffic, 20, 0.9) == pytest.approx(by_hand)
    assert slow.arrived(traffic, 20, 0.001) == pytest.approx(1 + 1 / 20 + 5)
    cell = dataclasses.replace(
        wireless.SITES["urban-micro"].serving(20, 100_000), t_min=0.1, mean_delay=2.0
    )
    deadline = cell.arrived(traffic, 20, 0.8)
    draws = 0.1 + np.random.default_rng(5).exponential(2.0, size=(2000, 20))
    late = [(cell.arrivals(traffic, each) > deadline).mean() for each in draws]
    assert np.mean(late) == pytest.approx(0.2, abs=0.02)
    assert cell.arrived(traffic, 20, 1.0) <= cell.round_time(traffic, 20)
