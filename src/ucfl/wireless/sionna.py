"""A second source of SNRs and block errors: Sionna (the extra ``radio``).

Where users are, what they see, path loss and walls are drawn by us; Sionna draws shadowing and fast
fading for them (TR 38.901, clause 7.5), and has block error rates of NR's codes, simulated. (Below
6 GHz it would take the fixed 20 dB wall of table 7.4.3-3, so walls stay with us.) Its random
generator is seeded by the site's seed.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ucfl.errors import not_installed
from ucfl.wireless.channel import Floats
from ucfl.wireless.link import Steps
from ucfl.wireless.placement import Placement

if TYPE_CHECKING:
    from ucfl.wireless.site import Site

#: Subcarriers over the band, and moments, at which the channel is looked at.
SUBCARRIERS, MOMENTS = 64, 14
#: Seconds between the moments (half a subframe), and m/s of users (3 km/h; TR 38.901, table 7.2-1).
INTERVAL, SPEED = 5e-4, 3 / 3.6
#: Simulated block error rates of the MCS of TS 38.214, table 5.1.3.1-2 (256-QAM), which both
#: directions use (clause 6.1.4.1, without transform precoding).
ERRORS, TABLE = "PDSCH_table2.json", 2


def gains(site: Site, placed: Placement) -> Floats:
    """[m, n]: power gains of each user's channel at :data:`SUBCARRIERS` x :data:`MOMENTS`."""
    model = channel_model(site, placed)
    import torch
    from sionna.phy.channel import cir_to_ofdm_channel

    with torch.no_grad():
        paths, delays = model(MOMENTS, 1 / INTERVAL)
        spacing = site.bandwidth / SUBCARRIERS
        frequencies = spacing * (torch.arange(SUBCARRIERS, dtype=torch.float64) - SUBCARRIERS / 2)
        response = cir_to_ofdm_channel(frequencies, paths, delays)
    # [batch, user, its antenna, base station, its antenna, moment, subcarrier]
    fading: Floats = response[0, :, 0, 0, 0].abs().square().flatten(1).double().numpy()
    return fading * 10 ** (-(placed.path_loss + placed.penetration) / 10)[:, None]


def channel_model(site: Site, placed: Placement, path_loss: bool = False) -> Any:
    """Sionna's model of the surroundings with the users in it, with or without its path loss."""
    _required()
    import torch
    from sionna.phy import config
    from sionna.phy.channel import tr38901

    config.seed = site.seed % 2**31
    one = {"num_rows_per_panel": 1, "num_cols_per_panel": 1, "polarization": "single"}
    array = tr38901.PanelArray(
        **one,
        polarization_type="V",
        antenna_pattern="omni",
        carrier_frequency=site.carrier,
        precision="double",
    )
    shared = {
        "carrier_frequency": site.carrier,
        "ut_array": array,
        "bs_array": array,
        "direction": "downlink",
        "enable_pathloss": path_loss,
        "enable_shadow_fading": site.shadowing,
        "precision": "double",
    }
    if site.surroundings == "indoor-office":
        model = tr38901.InH(indoor_scenario="mixed", **shared)
    else:
        kind = tr38901.UMi if site.surroundings == "urban-micro" else tr38901.UMa
        model = kind(o2i_model="low", **shared)
    model.set_topology(**_topology(site, placed, torch))
    return model


def _topology(site: Site, placed: Placement, torch: Any) -> dict[str, Any]:
    """Places, states and speeds as Sionna takes them: a batch of one base station's users."""
    where, angle, height = placed.distance, placed.angle, placed.height
    heading = np.random.default_rng([site.seed, 13]).random(len(placed.distance)) * 2 * np.pi
    places = np.stack([where * np.cos(angle), where * np.sin(angle), height], axis=1)
    speeds = SPEED * np.stack([np.cos(heading), np.sin(heading), 0 * heading], axis=1)

    def batch(values: Any) -> Any:
        return torch.from_numpy(np.asarray(values))[None]

    # Sionna counts everyone in its office as indoors, and draws no walls there.
    indoor = placed.indoor | (site.surroundings == "indoor-office")
    topology = {
        "ut_loc": batch(places),
        "bs_loc": batch([[0.0, 0.0, site.base_height]]),
        "ut_orientations": batch(np.zeros_like(places)),
        "bs_orientations": batch(np.zeros((1, 3))),
        "ut_velocities": batch(speeds),
        "in_state": batch(indoor),
        "los": batch(placed.line_of_sight[None]),
    }
    if site.surroundings != "indoor-office":
        topology["distance_2d_in"] = batch(placed.inside)
    return topology


def effective_snr_db(lossless_db: float, power_gains: Floats) -> Floats:
    """[m]: the SNR of a flat channel with the same mean capacity, 2^mean(log₂(1 + SNR)) − 1."""
    capacity = np.log1p(10 ** (lossless_db / 10) * power_gains).mean(axis=1)
    found: Floats = 10 * np.log10(np.expm1(capacity))
    return found


@lru_cache(maxsize=16)
def simulated_steps(block_error: float) -> Steps:
    """The MCS of TS 38.214 (256-QAM table) from the SNR at which their blocks fail that seldom.

    Of the largest code block that was simulated; an MCS that never gets there is left out.
    """
    _required()
    import sionna.sys
    from sionna.phy.nr.utils import decode_mcs_index

    file = Path(sionna.sys.__file__).parent / "bler_tables" / ERRORS
    (category,) = sionna.sys.PHYAbstraction.load_table(str(file))["category"].values()
    found = []
    for mcs, table in category["index"][TABLE]["MCS"].items():
        errors = table["CBS"][max(table["CBS"])]
        errors = np.asarray(errors["BLER"] if isinstance(errors, dict) else errors)
        bad = np.flatnonzero(errors > block_error)
        place = bad[-1] + 1 if len(bad) else 0
        if place < len(errors):
            order, rate = decode_mcs_index(mcs, TABLE, is_pusch=False)
            found.append((float(table["SNR_db"][place]), float(order) * float(rate)))
    return _increasing(found)


def _increasing(found: list[tuple[float, float]]) -> Steps:
    """Without steps that need more SNR than a faster one."""
    kept: list[tuple[float, float]] = []
    for snr, efficiency in sorted(found, key=lambda step: -step[1]):
        if not kept or snr < kept[-1][0]:
            kept.append((snr, efficiency))
    thresholds, efficiencies = np.array(kept[::-1]).T
    return Steps(thresholds, efficiencies)


def _required() -> None:
    try:
        import sionna.phy  # noqa: F401
    except ImportError as error:
        raise not_installed("channel=sionna and rate=sionna need Sionna", "radio") from error
