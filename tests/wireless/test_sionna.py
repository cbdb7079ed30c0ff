"""Sionna behind the same site: a second source of channels and block errors, if installed."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("sionna.phy", reason="ucfl[radio] is not installed")

from ucfl.wireless import SITES, RadioCell, Traffic, find
from ucfl.wireless.channel import breakpoint_distance
from ucfl.wireless.link import shannon_efficiency
from ucfl.wireless.sionna import channel_model, effective_snr_db, gains, simulated_steps


@pytest.mark.parametrize("name", SITES)
def test_path_loss_and_line_of_sight_are_sionnas(name):
    """A second implementation of TR 38.901: the same users, the same loss."""
    site = dataclasses.replace(SITES[name], radius=150 if name == "indoor-office" else 2000)
    placed = site.placed(1000)
    scenario = channel_model(site, placed, path_loss=True)._scenario
    theirs = scenario.los_probability[0, 0].numpy()
    ours = site.environment.probability(placed.distance - placed.inside, placed.height)
    assert abs(ours - theirs).max() < 1e-6
    apart = abs(scenario.basic_pathloss[0, 0].numpy() - placed.path_loss)
    # High users of UMa have a drawn environment height, each side its own.
    same = placed.height < 13 if name == "urban-macro" else np.full(1000, True)
    limit = breakpoint_distance(site.carrier, site.base_height, placed.height, 1.0)
    near = (placed.distance < 0.99 * limit) | (name == "indoor-office")
    assert (same & near).sum() > 200
    assert apart[same & near].max() < 1e-6
    # Beyond the breakpoint, Sionna has light's own speed where note 1 has 3.0e8 m/s: 0.006 dB.
    assert apart[same].max() < 0.01


def test_shadowing_and_fading_lie_around_our_loss():
    site = dataclasses.replace(SITES["urban-micro"], seed=3, indoor=0.5)
    placed = site.placed(600)
    found = -10 * np.log10(gains(site, placed).mean(1))
    apart = found - placed.path_loss - placed.penetration
    for members, deviation in (
        (placed.indoor, 7.0),
        (~placed.indoor & placed.line_of_sight, 4.0),
        (~placed.indoor & ~placed.line_of_sight, 7.82),
    ):
        assert apart[members].std() == pytest.approx(deviation, rel=0.25)
        assert abs(apart[members].mean()) < deviation / 2


def test_a_cell_of_sionnas_is_a_cell_and_repeats_by_its_seed():
    site = find("urban-micro:channel=sionna:rate=sionna:seed=2:radius=50m:indoor=0%")
    first, again = site.serving(12, 200_000), site.serving(12, 200_000)
    assert isinstance(first, RadioCell)
    assert np.array_equal(first.snr_down_db, again.snr_down_db)
    other = find("urban-micro:channel=sionna:seed=4").serving(12, 200_000)
    assert not np.array_equal(first.snr_down_db, other.snr_down_db)
    assert 1 < first.round_time(Traffic(1, 1), 12) < 600


def test_the_effective_snr_of_a_flat_channel_is_its_snr():
    flat = np.full((2, 8), 1e-9)
    assert effective_snr_db(100.0, flat) == pytest.approx([10.0, 10.0])
    fading = np.array([[0.5e-9, 1.5e-9]])
    assert effective_snr_db(100.0, fading)[0] == pytest.approx(10 * np.log10(np.sqrt(6 * 16) - 1))


def test_simulated_steps_confirm_the_gap_of_3_db():
    steps = simulated_steps(0.1)
    assert (np.diff(steps.thresholds) > 0).all()
    assert (np.diff(steps.efficiencies) > 0).all()
    gap = steps.thresholds - 10 * np.log10(2**steps.efficiencies - 1)
    assert 1.5 < gap.min() <= gap.max() < 3.6
    assert 2.2 < gap.mean() < 3.0
    assert (simulated_steps(0.01).efficiencies <= 8).all()
    snr = np.array([5.0, 10.0, 15.0, 20.0])
    assert steps.efficiency(snr) == pytest.approx(shannon_efficiency(snr, 3.0), rel=0.2)
