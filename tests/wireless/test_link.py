"""Modulation and coding, errors and repeats, and round times worked by hand to 1e-9."""

import math

import numpy as np
import pytest

from ucfl.errors import UcflError
from ucfl.wireless import Audience, RadioCell, Traffic
from ucfl.wireless.link import (
    CQI_TABLES,
    MOST_REPETITIONS,
    cqi_steps,
    shannon_efficiency,
    transmissions,
)

#: The efficiencies as TS 38.214 prints them, in a column of its own.
PRINTED = {
    "cqi-table-1": "0.1523 0.2344 0.3770 0.6016 0.8770 1.1758 1.4766 1.9141 2.4063 2.7305 3.3223 "
    "3.9023 4.5234 5.1152 5.5547",
    "cqi-table-2": "0.1523 0.3770 0.8770 1.4766 1.9141 2.4063 2.7305 3.3223 3.9023 4.5234 5.1152 "
    "5.5547 6.2266 6.9141 7.4063",
    "cqi-table-3": "0.0586 0.0977 0.1523 0.2344 0.3770 0.6016 0.8770 1.1758 1.4766 1.9141 2.4063 "
    "2.7305 3.3223 3.9023 4.5234",
}
EXACT = {"rel": 0, "abs": 1e-9}


def db(ratio):
    return 10 * math.log10(ratio)


def cell(down, up, **changes):
    """1 MHz, a model of a megabit, no gap, no computing."""
    settings = {"bandwidth": 1e6, "model_bytes": 125_000, "gap_db": 0.0, "t_min": 0.0, **changes}
    return RadioCell(snr_down_db=np.array(down), snr_up_db=np.array(up), **settings)


@pytest.mark.parametrize("table", CQI_TABLES)
def test_the_tables_have_the_printed_efficiencies(table):
    found = cqi_steps(table, 3.0).efficiencies
    # Four digits; where the fifth is a 5, the table rounds up.
    assert found == pytest.approx([float(v) for v in PRINTED[table].split()], rel=0, abs=5.1e-5)
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("table", CQI_TABLES)
def test_steps_are_shannons_rate_rounded_down(table):
    steps, snr = cqi_steps(table, 3.0), np.linspace(-5, 45, 4001)
    shannon = np.log2(1 + 10 ** ((snr - 3) / 10))
    fitting = np.where(steps.efficiencies <= shannon[:, None], steps.efficiencies, 0).max(1)
    served = fitting > 0
    assert steps.efficiency(snr)[served] == pytest.approx(fitting[served])
    assert served.mean() > 0.9


def test_under_the_lowest_step_a_block_is_repeated():
    """Half the SNR of the lowest step: two copies, half its rate; 33 copies are too many."""
    steps = cqi_steps("cqi-table-1", 0.0)
    lowest, eta = steps.thresholds[0], steps.efficiencies[0]
    asked = lowest - np.array([0.0, db(2), db(2.5), db(MOST_REPETITIONS), db(33), 300.0])
    assert steps.efficiency(asked) == pytest.approx([eta, eta / 2, eta / 3, eta / 32, 0, 0])
    assert steps.efficiency(np.array([np.nan, -np.inf])) == pytest.approx([0, 0])


def test_transmissions_against_blocks_sent_one_by_one():
    rng = np.random.default_rng(0)
    for p, q, most in ((0.1, 0.01, 4), (0.3, 0.2, 2), (0.5, 0.5, 3), (0.4, 0.0, 1)):
        total = 0
        for _ in range(40_000):
            arrived, tries = False, 0
            while not arrived:
                total += 1
                arrived = rng.random() >= (p if tries == 0 else q)
                tries = 0 if tries + 1 == most else tries + 1
        assert transmissions(p, q, most) == pytest.approx(total / 40_000, rel=0.02)
    for most in (1, 2, 5):
        assert transmissions(0.25, 0.25, most) == pytest.approx(4 / 3, **EXACT)
    assert transmissions(0.0, 0.9, 4) == 1


def test_worked_example_multicast_by_the_worst_listener():
    """docs/wireless.md, example 1.

    SNR 1, 3 and 15 carry 1, 2 and 4 bit/s/Hz: a megabit on 1 MHz takes 1, 1/2 and 1/4 s. Two
    streams, to user 0 and to users 1 and 2: 1 + 1/2 s down. Up, a third of the band each, SNR three
    times as high: 3, 9, 45 carry 2, log₂ 10, log₂ 46, so the slowest takes 3/2 s. Computing: 1 s.
    """
    c = cell([db(1), db(3), db(15)], [db(1), db(3), db(15)], t_min=1.0)
    streams = np.array([0, 1, 1])
    assert c.downlink(2, 3, streams) == pytest.approx(1.5, **EXACT)
    assert c.uplink(1, 3) == pytest.approx(1.5, **EXACT)
    assert c.round_time(Traffic(2, 1), 3, streams) == pytest.approx(1.5 + 1 + 1.5, **EXACT)
    assert c.downlink(1, 3) == pytest.approx(1, **EXACT)


def test_worked_example_coverage_with_repair():
    """docs/wireless.md, example 2.

    Four listeners with 1, 2, 4 and 4 bit/s/Hz; 75% of them are three. The broadcast goes at 2
    bit/s/Hz (1/2 s), then user 0 gets it alone: at 1 bit/s/Hz (1 s), or, with a beam of factor 3
    (SNR 3), at 2 bit/s/Hz (1/2 s). A broadcast to all takes 1 s.
    """
    down = [db(1), db(3), db(15), db(15)]
    plain = cell(down, down, coverage=0.75)
    assert plain.downlink(1, 4) == pytest.approx(0.5 + 1, **EXACT)
    beam = cell(down, down, coverage=0.75, unicast_gain_db=db(3))
    assert beam.downlink(1, 4) == pytest.approx(0.5 + 0.5, **EXACT)
    stronger = cell(down, down, coverage=0.75, unicast_gain_db=db(15))
    assert stronger.downlink(1, 4) == pytest.approx(0.5 + 0.25, **EXACT)
    assert cell(down, down).downlink(1, 4) == pytest.approx(1, **EXACT)
    heard = beam.listening(1, 4)
    assert heard == pytest.approx([0.5, 0.5, 0.5, 0.5], **EXACT)
    # A stream has its own listeners: one alone is a unicast, 75% of three are all of them.
    assert beam.downlink(2, 4, np.array([0, 1, 1, 1])) == pytest.approx(0.5 + 0.5, **EXACT)


def test_worked_example_harq():
    """docs/wireless.md, example 3: p = 1/10, q = 1/2, three transmissions.

    An attempt takes 1 + 1/10 (1 + 1/2) = 1.15 transmissions and fails with 1/10 · 1/4 = 1/40, so a
    block is sent 1.15 / (39/40) = 46/39 times. A megabit at 4 bit/s/Hz on 1 MHz: 1/4 · 46/39 s.
    """
    c = cell(
        [db(15)], [db(15)], block_error=0.1, retransmission_error=0.5, transmissions=3,
        uplink_sharing="sequential",
    )  # fmt: skip
    assert transmissions(0.1, 0.5, 3) == pytest.approx(46 / 39, **EXACT)
    assert c.downlink(1, 1) == pytest.approx(46 / 39 / 4, **EXACT)
    assert c.round_time(Traffic(1, 1), 1) == pytest.approx(2 * 46 / 39 / 4, **EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_repair_pays_only_where_one_listener_is_served_better_alone(seed):
    """Without a beam, a model that all must have goes fastest at the worst listener's rate."""
    rng = np.random.default_rng(seed)
    down = np.append(rng.uniform(0, 30, 19), -8.0)
    whole = cell(down, down).downlink(1, 20)
    for share in (0.5, 0.8, 0.95):
        assert cell(down, down, coverage=share).downlink(1, 20) >= whole
    assert cell(down, down, coverage=0.95, unicast_gain_db=20).downlink(1, 20) < whole


def test_interference_lowers_every_snr():
    c = cell([db(6)], [db(6)], interference_db=db(2))
    assert c.down_rates == pytest.approx([2e6])
    assert c.up_rates == pytest.approx([2e6])


def test_a_cell_in_steps():
    """SNR 15 has 4 bit/s/Hz by Shannon, 3.9023 in table 1."""
    c = cell([db(15)], [db(15)], rate="cqi-table-1")
    assert c.down_rates == pytest.approx([1e6 * 6 * 666 / 1024])
    with pytest.raises(UcflError, match="user 0 gets no rate"):
        cell([-30.0], [3.0], rate="cqi-table-1")
    assert shannon_efficiency(np.array([60.0]), 0.0) == pytest.approx([8 * 948 / 1024])


def test_joules_of_receiving_and_waiting_by_hand():
    """Users with 1 and 2 bit/s/Hz, a stream each: 1 s and 1/2 s down, 1 s and 1/2 s up in turns.

    The round lasts 1.5 + 0.5 + 1.5 = 3.5 s. User 0 hears 1 s, computes 1/2 s, sends 1 s and waits
    1 s; user 1 hears 1/2, computes 1/2, sends 1/2 and waits 2 s.
    """
    c = cell(
        [db(1), db(3)], [db(1), db(3)], uplink_sharing="sequential", t_min=0.5, base_watts=10,
        base_idle_watts=7, user_watts=2, receiving_watts=3, idle_watts=0.25, computing_watts=5,
    )  # fmt: skip
    streams = np.array([0, 1])
    assert c.round_time(Traffic(2, 1), 2, streams) == pytest.approx(3.5)
    base = 10 * 1.5 + 7 * 3.5
    users = 3 * 1.5 + 2 * 1.5 + 0.25 * 3 + 5 * 1.0
    assert c.joules(Traffic(2, 1), 2, streams) == pytest.approx(base + users)


def test_compressed_messages_take_their_share_and_keep_their_listeners():
    """A quarter of the bits: a quarter of the time, with parts and streams as before."""
    ratios = [db(1), db(3), db(15)]
    c = cell(ratios, ratios)
    layered = Audience(((0.96, np.array([0, 0, 0])), (0.04, np.array([0, 1, 1]))))
    small = c.compressed(down=0.25, up=0.125)
    assert small.downlink(1.04, 3, layered) == pytest.approx(c.downlink(1.04, 3, layered) / 4)
    assert small.uplink(1, 3) == pytest.approx(c.uplink(1, 3) / 8)
    assert c.compressed(1, 1).uplink(1, 3) == c.uplink(1, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cell([1.0, 1.0], [1.0, 1.0]).downlink(3, 2, np.array([0, 2])), "stream 1 has no"),
        (lambda: cell([1000.0], [3.0]), "give 10 log10 of it, 30 dB"),
        (lambda: cell([3.0], [3.0], bandwidth=-1e6), "between 1 kHz and 10 GHz, not at -1 MHz"),
        (lambda: cell([3.0], [3.0], gap_db=200), "if 200 is a ratio of powers"),
        (lambda: cell([3.0], [3.0], coverage=95), "write 95% or 0.95"),
        (lambda: cell([3.0], [3.0], block_error=1.0), "between 0% and 90%"),
        (lambda: cell([3.0], [3.0], transmissions=0), "transmissions=0"),
        (lambda: cell([3.0], [3.0], rate="morse"), "rate=morse"),
        (lambda: cell([3.0], [3.0]).compressed(0, 1), "must be a number above 0"),
    ],
)
def test_silly_values_get_one_sentence(make, words):
    with pytest.raises(UcflError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
