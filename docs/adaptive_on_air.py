"""The adaptive method's cheaper form on air, beside stored cells of the others.

Run with: ucfl compare emnist-covariate-shift --out runs/careful --rounds 20 --seeds 0-4
              --algorithms adaptive-user-centric:streams=auto:doubt=2.0
          .venv/bin/python docs/adaptive_on_air.py runs/careful    (writes the JSON)
Twenty rounds are enough to be timed to 70% and to what FedAvg ends with.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from ucfl import paper
from ucfl.paper.claims import TARGET, timed_curve
from ucfl.paper.printed import COVARIATE_SHIFT
from ucfl.runs import Curve, curve, find_runs
from ucfl.wireless import SYSTEMS

RESULTS = Path(__file__).parent / "results"
STORED = ("adaptive-user-centric", "fedavg", "user-centric", "user-centric:streams=4", "oracle")


def main() -> None:
    """Times in T_dl by system and method; None where a target is never reached."""
    store, seeds = paper.Store(RESULTS), range(5)
    ((label, runs),) = find_runs(Path(sys.argv[1])).items()
    times = {}
    for system in SYSTEMS:
        curves: dict[str, Curve] = {label: curve(runs, system)}
        for name in STORED:
            cells = paper.PAPER.entry(COVARIATE_SHIFT, name).cells(seeds)
            results = [result for cell in cells if (result := store.load(cell))]
            curves[name] = timed_curve(results, system)
        targets = (TARGET, float(curves["fedavg"].mean[-1]))
        times[system] = {
            name: [
                None if math.isinf(t) else round(t, 1) for t in map(one.time_to_accuracy, targets)
            ]
            for name, one in curves.items()
        } | {"targets": [round(target, 2) for target in targets]}
    about = runs[0].about
    stored = {
        "command": f"python docs/adaptive_on_air.py {sys.argv[1]}",
        "trained": "ucfl " + " ".join(about["command"][1:]),
        "machine": about["machine"],
        "versions": about["versions"],
        "seeds": [run.seed for run in runs],
        "rounds": min(run.checkpoint.round for run in runs),
        "times": times,
    }
    (RESULTS / "adaptive-on-air.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
