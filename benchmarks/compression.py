"""Accuracy against bits: methods with compressed links, each really applied in training.

Run with: python benchmarks/compression.py SCENARIO ROUNDS METHOD…
(writes results/compression-SCENARIO.json)
Five seeds of every method with every pair of compressions below. What is there already is not run
again, so that it may be stopped anywhere. `python docs/tables.py` makes the tables.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import ucfl
from ucfl import users
from ucfl.errors import UcflWarning

#: What is done on the uplink and on the downlink.
LINKS = (
    ("none", "none"),
    ("quantise:bits=8", "quantise:bits=8"),
    ("quantise:bits=4", "quantise:bits=4"),
    ("top-k:share=0.05", "top-k:share=0.05"),
    ("sketch:share=0.1", "quantise:bits=8"),
)
SEEDS = range(5)
#: What tells one entry from another.
KEYS = ("scenario", "rounds", "algorithm", "uplink", "downlink", "seed")


def measured(wanted: dict[str, Any]) -> dict[str, Any]:
    links = {link: wanted[link] for link in ("uplink", "downlink") if wanted[link] != "none"}
    scenario = users.find(wanted["scenario"]).change(links)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UcflWarning)
        run = ucfl.run(
            scenario,
            wanted["algorithm"],
            seed=wanted["seed"],
            rounds=wanted["rounds"],
            out=f"{folder}/run",
            device="cpu",
        )
        down, up, _ = run.checkpoint.traffic.mean(0).tolist()
        return wanted | {
            "mean": run.summary["mean"],
            "worst": run.summary["worst"],
            "best_round": run.summary["best_round"],
            "models_down": down,
            "models_up": up,
            "model_bytes": run.model_bytes,
            "users": run.users,
            "versions": run.about["versions"],
        }


def main(scenario: str, rounds: int, algorithms: list[str]) -> None:
    folder = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    file = folder / f"compression-{scenario}.json"
    entries = json.loads(file.read_text()) if file.exists() else []
    known = {tuple(entry[key] for key in KEYS) for entry in entries}
    for algorithm in algorithms:
        for seed in SEEDS:
            for uplink, downlink in LINKS:
                values = (scenario, rounds, algorithm, uplink, downlink, seed)
                if values in known:
                    continue
                entries.append(measured(dict(zip(KEYS, values, strict=True))))
                print(json.dumps(entries[-1]), flush=True)
                file.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
