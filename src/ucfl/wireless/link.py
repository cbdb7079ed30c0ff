"""An SNR becomes bit/s: Shannon's rate with a gap, or the steps of 3GPP TS 38.214; then errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: (modulation order, code rate · 1024) of CQI 1 to 15: TS 38.214, tables 5.2.2.1-2 to 5.2.2.1-4.
CQI_TABLES = {
    "cqi-table-1": (
        (2, 78), (2, 120), (2, 193), (2, 308), (2, 449), (2, 602), (4, 378), (4, 490), (4, 616),
        (6, 466), (6, 567), (6, 666), (6, 772), (6, 873), (6, 948),
    ),
    "cqi-table-2": (
        (2, 78), (2, 193), (2, 449), (4, 378), (4, 490), (4, 616), (6, 466), (6, 567), (6, 666),
        (6, 772), (6, 873), (8, 711), (8, 797), (8, 885), (8, 948),
    ),
    "cqi-table-3": (
        (2, 30), (2, 50), (2, 78), (2, 120), (2, 193), (2, 308), (2, 449), (2, 602), (4, 378),
        (4, 490), (4, 616), (6, 466), (6, 567), (6, 666), (6, 772),
    ),
}  # fmt: skip
#: Times that a block may be repeated where even the lowest step is too fast: the largest
#: numberOfRepetitions of TS 38.214, clause 6.1.2.1 (table 6.1.2.1-1A and TS 38.331).
MOST_REPETITIONS = 32
#: b/s/Hz of the highest modulation and code rate (256-QAM, 948/1024; TS 38.214, CQI table 2).
HIGHEST_EFFICIENCY = 8 * 948 / 1024


@dataclass(frozen=True, eq=False)
class Steps:
    """Modulation and coding in steps: ``efficiencies`` [n] in b/s/Hz from ``thresholds`` [n] dB."""

    thresholds: Floats
    efficiencies: Floats

    def efficiency(self, snr_db: Floats) -> Floats:
        """The highest step that the SNR allows.

        Under the lowest one, a block is sent n times and the copies are added up, which lifts the
        SNR n times: 1/n of the lowest efficiency, up to n = :data:`MOST_REPETITIONS`, then nothing.
        """
        snr_db = np.nan_to_num(np.asarray(snr_db, dtype=np.float64), nan=-np.inf)
        place = np.searchsorted(self.thresholds, snr_db, side="right") - 1
        missing = np.maximum(self.thresholds[0] - snr_db, 0)
        copies = np.ceil(10 ** (np.minimum(missing, 300) / 10) - 1e-12)
        repeated = np.where(
            copies <= MOST_REPETITIONS, self.efficiencies[0] / np.maximum(copies, 1), 0.0
        )
        return np.where(place >= 0, self.efficiencies[np.maximum(place, 0)], repeated)


def cqi_steps(table: str, gap_db: float) -> Steps:
    """The steps of a CQI table: step q from SNR = Γ (2^η_q − 1), where Shannon with gap has η_q.

    TS 38.214 gives the efficiencies, and no SNR: that depends on the receiver, which is the gap.
    """
    efficiencies = np.array([order * rate / 1024 for order, rate in CQI_TABLES[table]])
    return Steps(10 * np.log10(2**efficiencies - 1) + gap_db, efficiencies)


def shannon_efficiency(snr_db: Floats, gap_db: float) -> Floats:
    """min(log₂(1 + SNR/Γ), highest) in b/s/Hz."""
    signal = 10 ** ((np.asarray(snr_db, dtype=np.float64) - gap_db) / 10)
    return np.minimum(np.log1p(signal) / math.log(2), HIGHEST_EFFICIENCY)


def transmissions(block_error: float, again: float, most: int) -> float:
    """How often a block is sent until it has arrived, in expectation.

    The first transmission fails with probability p = ``block_error``; each further one, added to
    those before, with q = ``again``. After ``most`` of them (n) HARQ gives up, and the block starts
    anew (RLC, TS 38.322). An attempt takes 1 + p (1 + q + … + q^(n−2)) transmissions and is lost
    with probability p q^(n−1), so

        E = (1 + p (1 − q^(n−1)) / (1 − q)) / (1 − p q^(n−1)).

    q = p, copies that are not added up, gives 1 / (1 − p) for any n.
    """
    attempt = 1 + block_error * sum(again**j for j in range(most - 1))
    return attempt / (1 - block_error * again ** (most - 1))
