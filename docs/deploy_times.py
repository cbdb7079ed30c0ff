"""Where the seconds of a deployed run's rounds go: python docs/deploy_times.py RUN [RESULT.json].

With a second argument, what the page needs is stored there; the page's table is made of that.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROWS = {
    "exchange": "a round's exchange, wall clock",
    "training": "the slowest user's training, wall clock",
    "evaluating": "the slowest user's evaluation, wall clock",
    "storing": "checkpoint, history and ledger on disk, wall clock",
    "mixing": "mixing, wall clock",
    "users_processor": "all users' processors",
    "users_training_processor": "… of that, training",
    "server_processor": "the server's processor",
}


def stored(run: Path) -> dict[str, Any]:
    """What is kept of a run: medians over its rounds but for the first, which traces the model."""
    entries = json.loads((run / "deployed.json").read_text())["bytes"]
    about = json.loads((run / "run.json").read_text())
    rounds = [entry for entry in entries if entry["round"] > 1]
    found = {name: statistics.median(e["seconds"][name] for e in rounds) for name in ROWS}
    return {
        "command": re.sub(r" --out \S+", "", "ucfl " + " ".join(about["command"][1:])),
        "users": len(about["users"]["names"]),
        "rounds": len(rounds) + 1,
        "machine": {word: about["machine"][word] for word in ("device", "executor")},
        "versions": about["versions"],
        "first_round": entries[1]["seconds"]["exchange"],
        "seconds": {name: round(value, 3) for name, value in found.items()},
        "bytes": {name: rounds[-1][name] for name in ("down", "delivered", "up")},
        "model_bytes": about["model_bytes"],
    }


def table(result: dict[str, Any]) -> str:
    """The page's table."""
    lines = ["| of a round | seconds (median) |", "|---|---|"]
    lines += [f"| {words} | {result['seconds'][name]:.3f} |" for name, words in ROWS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    found = stored(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")
    print(found["command"])
    print(table(found))
