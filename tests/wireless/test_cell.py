"""Radio cells: rates, times and joules worked by hand, and the invariants of radio."""

import dataclasses
import math

import numpy as np
import pytest

from ucfl.errors import UcflError
from ucfl.wireless import SITES, Audience, RadioCell, Traffic, find

MEGABIT = 125_000  # bytes


def cell(down, up, **changes):
    settings = {"bandwidth": 1e6, "model_bytes": MEGABIT, "gap_db": 0.0, "t_min": 0.0, **changes}
    return RadioCell(snr_down_db=np.array(down), snr_up_db=np.array(up), **settings)


def db(ratio):
    return 10 * math.log10(ratio)


def test_rates_and_times_by_hand():
    """SNR 1, 3 and 15 carry 1, 2 and 4 bit/s/Hz: 1, 0.5 and 0.25 s for a megabit on 1 MHz."""
    ratios = [db(1), db(3), db(15)]
    c = cell(ratios, ratios, uplink_sharing="sequential")
    assert c.downlink(1, 3) == pytest.approx(1)  # the slowest decides
    assert c.downlink(3, 3, np.array([0, 1, 2])) == pytest.approx(1 + 0.5 + 0.25)  # unicast
    assert c.downlink(2, 3, np.array([0, 1, 1])) == pytest.approx(1 + 0.5)  # group broadcast
    assert c.downlink(2, 3) == pytest.approx(2)  # everyone listens to both
    assert c.uplink(1, 3) == pytest.approx(1 + 0.5 + 0.25)
    assert c.uplink(2, 3) == pytest.approx(2 * (1 + 0.5 + 0.25))


def test_every_part_of_the_model_has_streams_and_listeners_of_its_own():
    """The body goes to everyone, at the pace of the slowest; heads go to groups, at theirs."""
    ratios = [db(1), db(3), db(15)]  # a model takes 1, 1/2, 1/4 s
    c = cell(ratios, ratios)
    layered = Audience(((0.96, np.array([0, 0, 0])), (0.04, np.array([0, 1, 1]))))
    expected = 0.96 * 1 + 0.04 * (1 + 0.5)
    assert c.downlink(0.96 + 2 * 0.04, 3, layered) == pytest.approx(expected)
    assert c.downlink(2, 3, layered) == pytest.approx(2)  # not its models: everyone hears all
    assert c.downlink(0.96, 3) == pytest.approx(0.96)  # what stays with users is not sent
    there = np.array([[True, True, True], [True, False, True], [False, False, True]])
    rounds = np.array([[0.96 + 3 * 0.04, 0, 0], [1.04, 0, 0], [1.0, 0, 0]])
    own = Audience(((0.96, np.array([0, 0, 0])), (0.04, np.array([1, 0, 2]))))
    times = c.elapsed(Traffic(0, 0, 0), rounds, 3, own, present=there)
    assert np.diff(times) == pytest.approx([0.96 + 0.04 * 1.75, 0.96 + 0.04 * 1.25, 0.25])
    assert layered.labels is None
    assert Audience.of(np.array([0, 1, 1])).labels.tolist() == [0, 1, 1]


def test_ofdma_concentrates_power_in_a_part_of_the_band():
    """Three users have a third of the band each, where SNR 1 and 5 become 3 and 15."""
    c = cell([db(7)] * 3, [db(1), db(1), db(5)])
    assert c.up_rates == pytest.approx([2e6 / 3, 2e6 / 3, 4e6 / 3])
    assert c.uplink(1, 3) == pytest.approx(1.5)


def test_a_gap_and_the_highest_modulation_bound_the_rate():
    assert cell([db(6)], [db(6)], gap_db=db(2)).down_rates == pytest.approx([2e6])
    assert cell([60.0], [60.0]).down_rates == pytest.approx([1e6 * 8 * 948 / 1024])


def test_joules_by_hand():
    ratios = [db(1), db(3)]
    c = cell(
        ratios,
        ratios,
        uplink_sharing="sequential",
        base_watts=10,
        user_watts=2,
        computing_watts=5,
        t_min=0.5,
        mean_delay=0.25,
    )
    # down 1 s at 10 W; up 1 s and 0.5 s at 2 W; two users compute 0.75 s at 5 W
    assert c.joules(Traffic(1, 1), 2) == pytest.approx(10 + 3 + 7.5)
    assert c.joules(Traffic(0, 0, 2), 2) == pytest.approx(15)


@pytest.mark.parametrize("name", SITES)
def test_sites_serve_users_and_farther_is_slower(name):
    site = find(f"{name}:shadowing=false:indoor=0%")
    places = np.linspace(site.nearest, site.radius, 40)
    c, sees = site.serving(40, 200_000, places), site.placed(40, places).line_of_sight
    assert 0 < sees.sum() < 40
    for state in (sees, ~sees):
        assert (np.diff(c.down_rates[state]) <= 0).all()
        assert (np.diff(c.up_rates[state]) <= 0).all()
        assert (np.diff(site.placed(40, places).loss[state]) > 0).all()
    assert 0 < c.round_time(Traffic(1, 1), 40) < 60
    where = SITES[name].distances(500)
    assert where.min() >= site.nearest
    assert where.max() <= site.radius
    again = SITES[name].serving(8, 200_000)
    assert np.array_equal(again.down_rates, SITES[name].serving(8, 200_000).down_rates)
    assert not np.array_equal(
        again.down_rates, find(f"{name}:seed=1").serving(8, 200_000).down_rates
    )


def test_personal_streams_cost_less_than_as_many_broadcasts_to_all():
    c = SITES["urban-macro"].serving(20, 200_000)
    alone = c.downlink(20, 20, np.arange(20))
    assert alone < c.downlink(20, 20)
    assert alone > c.downlink(1, 20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cell([-math.inf, 3.0], [3.0, 3.0]), "user 0 gets no rate on the downlink"),
        (lambda: cell([3.0, 3.0], [3.0, -400.0]), "user 1 gets no rate on the uplink"),
        (lambda: cell([math.nan], [3.0]), "no rate"),
        (lambda: cell([1.0], [1.0, 2.0]), "one downlink and one uplink SNR"),
        (lambda: cell([1.0], [1.0], bandwidth=0), "bandwidth=0: it lies between 1 kHz"),
        (lambda: cell([1.0], [1.0], model_bytes=0), "size in bytes"),
        (lambda: cell([1.0], [1.0], gap_db=-1), "gap_db"),
        (lambda: cell([1.0], [1.0], uplink_sharing="aloha"), "'ofdma' or 'sequential'"),
        (lambda: cell([1.0], [1.0]).round_time(Traffic(1, 1), 2), "1 users, the federation 2"),
        (lambda: find("urban-micro:radius=5m"), "radius must exceed"),
        (lambda: find("urban-micro:radius=5"), "write its unit"),
        (lambda: find("urban-micro:nearest=2m"), "known from 10 m to 5000 m"),
        (lambda: find("indoor-office:radius=200m"), "known from 1 m to 150 m"),
        (lambda: find("urban-micro:user_height=12m"), "not above its users"),
        (lambda: find("urban-micro:bandwidth=20"), "write its unit"),
        (lambda: find("urban-micro:bandwidth=20THz"), "one of Hz, kHz, MHz, GHz"),
        (lambda: find("urban-micro:base_dbm=400"), "between -10 dBm and 60 dBm"),
        (lambda: find("urban-micro:carrier=3500GHz"), "between 500 MHz and 100 GHz"),
        (lambda: find("urban-micro:carrier_ghz=3.5"), "did you mean 'carrier'"),
        (lambda: find("measured-cell").serving(2, 9), "measured-cell:file=FILE.csv"),
        (lambda: find("urban-micro:uplink_sharing=aloha"), "uplink_sharing=aloha"),
        (lambda: SITES["urban-micro"].placed(1, np.array([-3.0])), "metres above 0"),
    ],
)
def test_bad_values_get_one_sentence(make, words):
    with pytest.raises(UcflError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def written(tmp_path, text):
    (tmp_path / "snr.csv").write_text(text)
    return f"measured-cell:file={tmp_path / 'snr.csv'}:bandwidth=10MHz"


def test_users_own_snrs_come_from_a_file(tmp_path):
    text = "user,snr_down_db,snr_up_db\nanna,20,5\nben,3.5,-2\n"
    c = find(written(tmp_path, text)).serving(2, 1000)
    assert c.snr_down_db.tolist() == [20, 3.5]
    assert c.snr_up_db.tolist() == [5, -2]
    assert c.bandwidth == 10e6
    by_hand = RadioCell(
        bandwidth=10e6, snr_down_db=np.array([20, 3.5]), snr_up_db=np.array([5, -2.0]),
        model_bytes=1000, block_error=0.1, retransmission_error=0.01,
    )  # fmt: skip
    assert c.round_time(Traffic(1, 1), 2) == by_hand.round_time(Traffic(1, 1), 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("snr_down_db,snr_up_db\n1,2\n", "the cell has 1 users, the federation 2"),
        ("snr_down_db,snr\n1,2\n3,4\n", "has no column 'snr_up_db'"),
        ("snr_down_db,snr_up_db\n1,2\n3,far\n", "could not convert"),
        ("snr_down_db,snr_up_db\n1,2\n3\n", "is damaged"),
        ("snr_down_db,snr_up_db\n", "has no user"),
        ("snr_down_db,snr_up_db\n1,2\n3,1000\n", "user 1 has 1000 dB on the uplink"),
        ("snr_down_db,snr_up_db\n1,2\nnan,3\n", "user 1 gets no rate on the downlink"),
    ],
)
def test_files_of_snrs_that_are_none(tmp_path, text, words):
    with pytest.raises(UcflError) as caught:
        find(written(tmp_path, text)).serving(2, 1000)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_can_send_beside_everybody_can_send_beside_a_few():
    """Known mistake: a cohort's larger parts of the band left weak users without a rate."""
    cell = find("urban-macro:rate=cqi-table-1:radius=500m").serving(20, 100_000)
    weakest = cell.snr_up_db.argmin()
    for others in (1, 2, 9):
        here = np.zeros(20, dtype=bool)
        here[[weakest, *[user for user in range(20) if user != weakest][:others]]] = True
        few = cell.among(here)
        assert (few.up_rates > 0).all()
        # Nobody is slower than in the smaller part that it has beside everybody.
        assert (few.up_rates >= 0.49 * cell.up_rates[here]).all()
    with pytest.raises(UcflError, match="gets no rate on the uplink"):
        dataclasses.replace(cell, snr_up_db=cell.snr_up_db - 60)
