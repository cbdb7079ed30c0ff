"""pFedMe as its authors run it, round by round, beside the form of the publication (seed 0).

Run with: .venv/bin/python docs/pfedme.py    (needs EMNIST and CIFAR-10; writes the JSON)

Every federation is that of the paper's Table I. A run that is stored already is not made again.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ucfl import algorithms, paper
from ucfl.federation import Federation
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.runs import federation

RESULTS = Path(__file__).parent / "results"
FILE = RESULTS / "pfedme.json"
COMMAND = "python docs/pfedme.py"
SEED, EVERY = 0, 10
#: Rounds of a form on a federation. The publication's rounds cost many times as much.
RUNS = {
    (LABEL_SHIFT, "pfedme"): 50,
    (CONCEPT_SHIFT, "pfedme"): 30,
    (LABEL_SHIFT, "pfedme:momentum=0.0"): 30,
    (LABEL_SHIFT, "pfedme:outer_momentum=0.0"): 30,
    (LABEL_SHIFT, "pfedme:momentum=0.0:outer_momentum=0.0"): 30,
    (COVARIATE_SHIFT, "pfedme"): 30,
    (LABEL_SHIFT, "pfedme:form=publication"): 10,
}


def curve(fed: Federation, name: str, rounds: int) -> dict[str, float]:
    """Mean test accuracy of the personal models by round, in percent."""
    algorithm = algorithms.find(name)
    state, found = algorithm.start(fed), dict[str, float]()
    for t in range(1, rounds + 1):
        state = algorithm.round(fed, state, t)
        if t % EVERY == 0:
            accuracy = fed.metric(algorithm.models(state), "test")
            found[str(t)] = round(100 * float(accuracy.nanmean()), 2)
    return found


def main() -> None:
    """Run what is not stored, and store each run as it ends."""
    stored = json.loads(FILE.read_text()) if FILE.exists() else {"rows": []}
    rows = {(row["scenario"], row["algorithm"]): row for row in stored["rows"]}
    for (scenario, name), rounds in RUNS.items():
        if (scenario, name) in rows:
            continue
        fed = federation(paper.PAPER.scenarios[scenario], SEED)
        rows[scenario, name] = {
            "scenario": scenario,
            "algorithm": name,
            "seed": SEED,
            "test_accuracy": curve(fed, name, rounds),
        }
        made = [rows[key] for key in RUNS if key in rows]
        about = {"command": COMMAND, "torch": torch.__version__, "rows": made}
        FILE.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
