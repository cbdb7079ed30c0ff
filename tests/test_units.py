"""Quantities as people write them."""

import pytest

from ucfl import units
from ucfl.errors import UcflError
from ucfl.units import Quantity

BAND = Quantity(units.FREQUENCY, 1e3, 10e9)
POWER = Quantity(units.DECIBEL_MILLIWATTS, -10, 60, plain=True)
LOSS = Quantity(units.DECIBELS, 0, 30, plain=True)
SHARE = Quantity(units.SHARE, 0, 1, plain=True)


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (BAND, "20MHz", 20e6),
        (BAND, "3.5 GHz", 3.5e9),
        (BAND, "2e4Hz", 2e4),
        (POWER, "23dBm", 23),
        (POWER, "23", 23),
        (POWER, "2W", 33.0102999566),
        (POWER, "100mW", 20),
        (LOSS, "3dB", 3),
        (SHARE, "85%", 0.85),
        (SHARE, "0.85", 0.85),
        (units.BYTES, "178kB", 178e3),
        (units.BYTES, "1MiB", 2**20),
        (units.BYTES, "9", 9),
        (units.SECONDS, "2min", 120),
        (units.JOULES, "1.5kJ", 1500),
        (units.JOULES, "1Wh", 3600),
    ],
)
def test_numbers_with_their_units(quantity, text, value):
    assert units.read(quantity, text, "it") == pytest.approx(value)


@pytest.mark.parametrize(
    ("quantity", "text", "words"),
    [
        (BAND, "20", "write its unit, as"),
        (BAND, "20mhz", "one of Hz, kHz, MHz, GHz"),
        (BAND, "20 parsecs", "one of Hz"),
        (BAND, "much", "write a number"),
        (BAND, "-5MHz", "between 1 kHz and 10 GHz, not at -5 MHz"),
        (BAND, "", "write a number"),
        (BAND, "nan", "write a number"),
        (BAND, "1e999Hz", "not at inf"),
        (POWER, "400", "between -10 dBm and 60 dBm, not at 400 dBm"),
        (POWER, "-2W", "above 0"),
        (POWER, "0W", "above 0"),
        (LOSS, "1000", "if 1000 is a ratio of powers, write 10 log10 of it, 30 dB"),
        (SHARE, "85", "write 85% or 0.85"),
        (SHARE, "185%", "between 0% and 100%, not at 185%."),
        (units.SECONDS, "5", "write its unit"),
    ],
)
def test_what_is_no_such_quantity_gets_one_sentence(quantity, text, words):
    with pytest.raises(UcflError) as caught:
        units.read(quantity, text, "--option")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_quantities_for_people():
    assert BAND.text(20e6) == "20 MHz"
    assert BAND.text(0) == "0 Hz"
    assert SHARE.text(0.8) == "80%"
    assert units.SECONDS.text(90) == "90 s"
    assert Quantity(units.POWER, 0, 1e3).text(0.09) == "90 mW"
