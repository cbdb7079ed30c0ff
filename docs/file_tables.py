"""The pages' tables that are made from files of results, and from benchmarks' entries."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ucfl.paper import (
    tables,
)

RESULTS = Path(__file__).parent / "results"
BENCHMARKS = Path(__file__).parent.parent / "benchmarks" / "results"


def rotated_mnist() -> str:
    """Five seeds of the embedded scenario."""
    stored = json.loads((RESULTS / "rotated-mnist.json").read_text())
    lines = ["| method | mean | worst user | models down |", "|---|---|---|---|"]
    for name, row in stored["result"]["algorithms"].items():
        cells = [
            f"{row[who]['final']:.1f} ± {row['std'][who]['final']:.1f}" for who in ("mean", "worst")
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {row['traffic']['down']:g} |")
    return "\n".join(lines)


def grid() -> str:
    """One seed of every hyper-parameter tried; validation accuracy chooses."""
    with (RESULTS / "grid.csv").open() as f:
        rows = list(csv.DictReader(f))
    headers = ["scenario (rounds)", "algorithm", "tested model", "validation", "best", "final"]
    keys = ("validation_best", "mean_best", "mean_final", "worst_final")
    return tables.markdown(
        [*headers, "worst, final"],
        [
            [f"{row['scenario']} ({row['rounds']})", row["algorithm"], row["tested_model"]]
            + [f"{float(row[key]):.1f}" for key in keys]
            for row in rows
        ],
    )


def on_air() -> str:
    """Time to FedAvg's final accuracy on each network."""
    systems = ("slow-uplink", "fast-uplink", "wired", "urban-macro")
    stored = {name: json.loads((RESULTS / f"on-air-{name}.json").read_text()) for name in systems}
    times = {name: stored[name]["times"]["algorithms"] for name in systems}
    heads = [f"{name} ({stored[name]['unit']})" for name in systems]
    lines = [f"| method | streams | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for label, row in times[systems[0]].items():
        each = [times[name][label]["time"] for name in systems]
        cells = ["never" if time is None else f"{time:.1f}" for time in each]
        lines.append(f"| {label} | {row['streams']:g} | {' | '.join(cells)} |")
    picks = [str(stored[name]["recommended"]) for name in systems]
    return "\n".join([*lines, f"| *recommended streams, seed 0* | | {' | '.join(picks)} |"])


def radio() -> str:
    """EMNIST in a radio cell: what a round costs, what it gives, and the cost of FedAvg's value."""
    stored = json.loads((RESULTS / "radio-emnist.json").read_text())
    steps = stored["systems"]["urban-micro:rate=cqi-table-2"]["methods"]
    methods = stored["systems"]["urban-micro"]["methods"]
    goal = methods["fedavg"]["test"][-1]
    heads = ["method", "models down", "s a round", "J a round", "final accuracy"]
    heads += [f"s to {goal:.1f}%", f"J to {goal:.1f}%", "s a round in CQI steps"]
    rows = []
    for label, each in sorted(methods.items(), key=lambda item: -item[1]["test"][-1]):
        reached = next((t for t, value in enumerate(each["test"]) if value >= goal), None)
        costs = ["never"] * 2
        if reached is not None:
            costs = [f"{each[kind][reached]:,.0f}" for kind in ("time", "joules")]
        rows.append(
            [
                label,
                f"{each['down']:g}",
                f"{_each(each['time']):.2f}",
                f"{_each(each['joules']):.0f}",
                f"{each['test'][-1]:.1f}",
                *costs,
                f"{_each(steps[label]['time']):.2f}",
            ]
        )
    return tables.markdown(heads, rows)


def _each(spent: list[float]) -> float:
    """Of a round, without what happens before the first."""
    return (spent[-1] - spent[0]) / (len(spent) - 1)


def left_out() -> str:
    """Rounds that do not wait for the slowest tenth: time and accuracy beside the same without."""
    stored = json.loads((RESULTS / "radio-emnist.json").read_text())["deadline"]
    heads = ["method", "deadline", "late users", "s a round", "mean", "worst user", "those late"]
    rows = []
    for row in stored:
        for words, kind, late in (
            ("none", "everyone", "0"),
            (f"{row['deadline']:g} s", "in_time", f"{row['late']:g}"),
        ):
            found = row[kind]
            values = [f"{found[who]:.1f}" for who in ("mean", "worst", "left_out")]
            rows.append([row["method"], words, late, f"{found['seconds_a_round']:.2f}", *values])
    return tables.markdown(heads, rows)


def group_errors() -> str:
    """How often the layered method's tests err, without training."""
    found = json.loads((BENCHMARKS / "groups.json").read_text())
    heads = ["federations", "seeds", "true k", "right k", "rand index", "right bodies", "priors"]
    rows = [
        [
            row["what"],
            *(str(row[key]) for key in ("seeds", "groups", "right_k")),
            f"{row['rand_index']:.3f}",
            *(str(row[key]) for key in ("right_bodies", "priors", "own_models")),
            " to ".join(f"{value:.2f}" for value in row["spread"]),
        ]
        for row in found["rows"]
    ]
    table = tables.markdown([*heads, "own models", "spread inside groups"], rows)
    return f"{table}\n\n(`{found['command']}`)"


def group_sizes() -> str:
    """How often users of one population are split whose sizes are very unequal."""
    found = json.loads((BENCHMARKS / "group-sizes.json").read_text())
    heads = ["examples of a class", "federations", "split", "share", "most groups"]
    rows = [
        [
            row["what"],
            str(row["federations"]),
            str(row["split"]),
            f"{row['split'] / row['federations']:.1%}",
            str(row["most"]),
        ]
        for row in found["rows"]
    ]
    return f"{tables.markdown(heads, rows)}\n\n(`{found['command']}`)"


def second_look() -> str:
    """Groups in prototypes of untrained networks, and of a model after some rounds."""
    found = json.loads((BENCHMARKS / "second-look.json").read_text())
    heads = ["federations", "features of", "k by seed", "rand index", "nearest to their own group"]
    rows = [
        [
            *(row[key] for key in ("what", "features")),
            ", ".join(map(str, row["k"])),
            f"{row['rand_index']:.2f}",
            f"{row['nearest']:.0%}",
        ]
        for row in found["rows"]
    ]
    return f"{tables.markdown(heads, rows)}\n\n(`{found['command']}`)"


def adaptive() -> str:
    """The adaptive method where the answer is known: groups, no structure, nothing in common."""
    lines = ["| federation | method | mean | worst user |", "|---|---|---|---|"]
    for kind in ("groups", "iid", "own-labels"):
        found = json.loads((RESULTS / f"adaptive-{kind}.json").read_text())
        for name, row in found["result"]["algorithms"].items():
            cells = [
                f"{row[who]['final']:.1f} ± {row['std'][who]['final']:.1f}"
                for who in ("mean", "worst")
            ]
            lines.append(f"| {kind} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def worst_user() -> str:
    """What chance alone makes of the worst user, beside the measured and the printed one."""
    stored = json.loads((RESULTS / "worst-user.json").read_text())
    heads = [
        *("scenario", "method", "test examples a user", "mean", "worst, measured"),
        *("by chance", "by chance, whole 20%", "printed"),
    ]
    keys = ("test_examples", "mean", "worst", "by_chance", "by_chance_whole", "printed")
    rows = [
        [row["scenario"], row["algorithm"], *(f"{row[key]:.1f}" for key in keys)]
        for row in stored["rows"]
    ]
    return f"{tables.markdown(heads, rows)}\n\n`{stored['command']}`"


def clusters_alike() -> str:
    """Methods that cluster, on users that are all alike."""
    found = json.loads((RESULTS / "clusters-alike.json").read_text())
    rows = [
        [row["algorithm"], str(row["seed"]), str(row["clusters"])]
        + [f"{row[key]:.1f}" for key in ("mean_best", "mean_final")]
        for row in found["by_seed"]
    ]
    heads = ["method", "seed", "clusters at the end", "mean, best", "mean, final"]
    return f"{tables.markdown(heads, rows)}\n\n`{found['command']}`"


def bounds() -> str:
    """What a user weighs itself in the minimiser of Theorem 1, with either complexity."""
    stored = json.loads((RESULTS / "bounds.json").read_text())
    heads = ["complexity", "VC dimension d", "factor of √(Σ w²/n)", "mean weight of a user itself"]
    keys = ("form", "vc_dimension", "estimation", "mean_own_weight")
    rows = [[str(row[key]) for key in keys] for row in stored["rows"]]
    return f"{tables.markdown(heads, rows)}\n\n`{stored['command']}`"


def pfedme() -> str:
    """pFedMe's forms by round, as far as they were run."""
    file = RESULTS / "pfedme.json"
    stored = json.loads(file.read_text())
    rounds = sorted({int(t) for row in stored["rows"] for t in row["test_accuracy"]})
    rows = [
        [row["scenario"], row["algorithm"]]
        + [
            f"{row['test_accuracy'][str(t)]:.1f}" if str(t) in row["test_accuracy"] else ""
            for t in rounds
        ]
        for row in stored["rows"]
    ]
    table = tables.markdown(["federation", "algorithm", *map(str, rounds)], rows)
    return f"{table}\n\n`{stored['command']}`"


def last_batch() -> str:
    """The three forms of the last batch: means over seeds, and the lowest seed."""
    files = sorted(BENCHMARKS.glob("last-batch-*.json"))
    found: dict[tuple[str, str, str], list[dict[str, dict[str, float]]]] = {}
    for row in (row for file in files for row in json.loads(file.read_text())):
        key = f"{row['scenario']} ({row['rounds']} rounds)", row["algorithm"], row["last_batch"]
        found.setdefault(key, []).append(row)
    heads = ["scenario", "algorithm", "last batch", "seeds", "mean, best", "mean, final"]
    rows = []
    for key, each in found.items():

        def over(who: str, when: str, each: list[dict[str, dict[str, float]]] = each) -> str:
            values = [row[who][when] for row in each]
            return f"{sum(values) / len(values):.1f} ({min(values):.1f})"

        figures = [over(who, when) for who in ("mean", "worst") for when in ("best", "final")]
        rows.append([*key, str(len(each)), *figures])
    return tables.markdown([*heads, "worst user, best", "worst user, final"], sorted(rows))


def compression() -> str:
    """Accuracy with compressed links beside that without, over the seeds that both have."""
    found: dict[tuple[str, str, str, str], dict[int, dict[str, Any]]] = {}
    for file in sorted(BENCHMARKS.glob("compression-*.json")):
        for row in json.loads(file.read_text()):
            scenario = f"{row['scenario']} ({row['rounds']} rounds)"
            key = scenario, row["algorithm"], row["uplink"], row["downlink"]
            found.setdefault(key, {})[row["seed"]] = row
    heads = ["scenario", "algorithm", "uplink", "downlink", "seeds", "up", "down"]
    heads += ["mean, best", "mean, final", "change", "worst user, final"]
    lines = []
    for key, each in found.items():
        first, whole = next(iter(each.values())), found[(*key[:2], "none", "none")]
        paired = [
            row["mean"]["final"] - whole[seed]["mean"]["final"]
            for seed, row in each.items()
            if seed in whole
        ]
        figures = [
            str(tables.Spread.over([row[who][when] for row in each.values()]))
            for who, when in (("mean", "best"), ("mean", "final"), ("worst", "final"))
        ]
        change = "" if key[2:] == ("none", "none") else f"{sum(paired) / len(paired):+.1f}"
        sent = [f"{first['models_up']:.3f}", f"{first['models_down']:.3f}"]
        lines.append([*key, str(len(each)), *sent, *figures[:2], change, figures[2]])
    return tables.markdown(heads, lines)


def benchmark(name: str, columns: dict[str, str]) -> Callable[[], str]:
    """Some columns of a stored benchmark, and the machine that it ran on."""

    def table() -> str:
        stored = json.loads((BENCHMARKS / f"{name}.json").read_text())
        rows = []
        for entry in stored["entries"]:
            shown = dict(entry)
            if "spread" in entry:
                shown["ratio"] = f"**{entry['ratio']}** ({' to '.join(map(str, entry['spread']))})"
            rows.append([str(shown.get(key, "")) for key in columns])
        told = {key: v for key, v in stored["machine"].items() if not key.startswith("load")}
        machine = ", ".join(f"{key} {value}" for key, value in told.items())
        return (
            f"{tables.markdown(list(columns.values()), rows)}\n\n`{stored['command']}`: {machine}"
        )

    return table


RATIOS = {"what": "ours", "users": "users", "ratio": "times the loop", "seconds": "seconds a round"}


SCALE = {
    "users": "users",
    "examples": "examples each",
    "round_seconds": "seconds a round",
    "microseconds_per_user": "µs per user",
    "collaboration_seconds": "collaboration round, s",
    "weights_seconds": "W, s",
    "streams_seconds": "streams up to 20, s",
    "peak_gigabytes": "peak GB",
}


PEERS = {
    "against": "peer",
    "users": "users",
    "ratio": "times the peer",
    "seconds": "our round, s",
    "seconds_against": "its round, s",
}


WHOLE = {
    "rounds": "rounds",
    "training_milliseconds": "training a round, ms",
    "evaluation_milliseconds": "evaluation, ms",
    "round_milliseconds": "a round, ms",
    "ratio_of_a_round": "all but training, over training",
    "import_seconds": "import, s",
    "data_seconds": "data, s",
    "first_round_seconds": "first round, s",
    "whole_seconds": "the whole run, s",
}


PARTICIPATION = {
    "algorithm": "algorithm",
    "images": "images a user",
    "ratio": "times longer",
    "seconds": "seconds a round, 50 users",
    "seconds_against": "50 of 1,000",
}


VERSIONS = {
    "model": "model",
    "compiled": "compiled",
    "users": "users",
    "ratio": "times version 0.1",
    "seconds": "seconds a round",
    "seconds_against": "version 0.1",
}


PRECISION = {
    "algorithm": "algorithm",
    "what": "precision",
    "ratio": "times float32",
    "seconds": "a run, s",
    "mean": "mean accuracy",
    "worst": "worst user",
}
