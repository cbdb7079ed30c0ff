"""What docs/wireless.md says of EMNIST in a radio cell: its results and its figure, from runs.

The runs are those of the commands there. Run with:
    .venv/bin/python docs/radio.py runs/radio runs/late-fedavg runs/late-layered docs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ucfl.plain import plain
from ucfl.report import DOUBLE, FIGURES, Look, gather, save
from ucfl.runs import Record, Run, curve
from ucfl.runs.budget import fronts_to_json, spendings

#: The cell, with Shannon's rate and with the steps of TS 38.214.
SYSTEMS = ("urban-micro", "urban-micro:rate=cqi-table-2")


def main(runs: Path, late: list[Path], target: Path) -> None:
    """Write the results and draw the figure."""
    every = gather([runs])
    records = {label: [run.record for run in each] for label, each in every.items()}
    measure = records["fedavg"][0].measure
    stored = {
        # Without the folder, which is that of another machine.
        "command": records["fedavg"][0].origin.command.partition(" --out ")[0],
        "seeds": [one.seed for one in records["fedavg"]],
        "users": records["fedavg"][0].users,
        "model_bytes": records["fedavg"][0].model_bytes,
        "systems": {name: fronts_to_json(spendings(records, name), measure) for name in SYSTEMS},
        "deadline": [waited(records, gather([folder])) for folder in late],
    }
    text = json.dumps(plain(rounded(stored)), indent=1)
    (target / "results" / "radio-emnist.json").write_text(f"{text}\n")
    for suffix in ("pdf", "svg"):
        look = Look(SYSTEMS[0], width=DOUBLE)
        save(FIGURES["pareto"](every, look), target / "results" / f"radio-emnist.{suffix}")
    save(FIGURES["pareto"](every, look), target / "figure-pareto.png")


def waited(whole: dict[str, list[Record]], runs: dict[str, list[Run]]) -> dict[str, object]:
    """One method with a deadline beside the same without."""
    ((label, found),) = runs.items()
    records = [run.record for run in found]
    system = records[0].scenario.system
    assert system is not None

    def told(each: list[Record]) -> dict[str, object]:
        times = curve(each, system).times
        finals = [one.value("mean", "best") for one in each]
        always = [one.late.all(0) if one.late is not None else one.best < 0 for one in records]
        return {
            "seconds_a_round": float((times[-1] - times[0]) / (len(times) - 1)),
            "mean": sum(finals) / len(each),
            "worst": sum(one.value("worst", "best") for one in each) / len(each),
            "left_out": sum(
                float(one.best[who].mean()) for one, who in zip(each, always, strict=True)
            )
            / len(each),
        }

    late = [one.late for one in records if one.late is not None]
    return {
        "method": label,
        "deadline": records[0].scenario.deadline,
        "late": float(sum(one.sum(1).mean() for one in late) / len(late)),
        "everyone": told(whole[label]),
        "in_time": told(records),
    }


def rounded(value: object) -> object:
    """Seven digits of every number: more would be another machine's rounding."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


if __name__ == "__main__":
    *folders, place = map(Path, sys.argv[1:])
    main(folders[0], folders[1:], place)
