"""The pages' tables, from stored results; the tests check that the pages have exactly these.

Run with: .venv/bin/python docs/tables.py            (prints them)
          .venv/bin/python docs/tables.py --write    (puts them into the pages)
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from ucfl import paper
from ucfl.paper import beyond, cells, compared, natural, people, standings, tables, worst
from ucfl.paper.claims import TARGET
from ucfl.paper.held_out import LAYERED
from ucfl.paper.items import ADAPTIVE, GENEROUS, ITEMS, OURS
from ucfl.paper.page import CLAIM_HEADERS, CSVS, claims_as_text
from ucfl.paper.printed import COVARIATE_SHIFT
from ucfl.paper.yardsticks import YARDSTICKS
from ucfl.runs import curve
from ucfl.wireless import SYSTEMS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "wireless.md",
    ROOT / "docs" / "speed.md",
    ROOT / "docs" / "last-batch.md",
    ROOT / "docs" / "equations.md",
    ROOT / "docs" / "compression.md",
    ROOT / "docs" / "algorithms" / "adaptive-user-centric.md",
    ROOT / "docs" / "algorithms" / "layered-user-centric.md",
    ROOT / "docs" / "algorithms" / "pfedme.md",
    ROOT / "docs" / "algorithms" / "fl-hc.md",
    ROOT / "docs" / "algorithms" / "cfl.md",
    RESULTS / "natural.md",
    RESULTS / "yardsticks.md",
    RESULTS / "README.md",
    RESULTS / "held-out.md",
]


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


@cache
def stored(asked: str = "all") -> paper.Measured:
    """The cells in docs/results/cells of the paper or of another item, with their own seeds."""
    cells = paper.in_order(paper.find([asked]), paper.PAPER)
    return paper.survey(cells, paper.Store(RESULTS), "cpu").measured


def reproduced(name: str) -> str:
    """Table I or II, entry by entry."""
    rows = tables.TABLES[name](paper.PAPER, stored())
    counted = [tables.agreement(rows)] if any(row.printed for row in rows) else []
    return "\n\n".join([tables.markdown(tables.HEADERS, tables.as_text(rows)), *counted])


def reproduced_beside(name: str) -> str:
    """Table I or II in the paper's layout, measured (printed)."""
    return tables.beside(tables.TABLES[name](paper.PAPER, stored()))


def beyond_beside() -> str:
    """The layered and the adaptive method beside the others, in the paper's layout."""
    rows = tables.TABLES["beyond"](paper.PAPER, stored())
    variants = set(OURS.values()) - {OURS[ADAPTIVE], OURS[LAYERED]}
    return tables.beside([row for row in rows if row.seeds and row.method not in variants])


def parallel() -> str:
    """Everyone in fig-parallel after as many rounds, and the weight that users keep themselves."""
    measured = stored()
    entries = [entry for entry in ITEMS["fig-parallel"].entries(paper.PAPER) if entry in measured]
    rounds = min(entry.scenario.rounds for entry in entries)
    heads = ["scenario", "method", "seeds", f"after {rounds} rounds", "own weight, by seed"]
    rows = []
    for entry in entries:
        results = measured[entry]
        found = tables.Spread.over([float(r.curves["test_mean"][rounds]) for r in results])
        learnt = [r.collaboration for r in results if r.collaboration is not None]
        own = [float(c.weights.diagonal().mean()) for c in learnt if c.weights is not None]
        kept = f"{min(own):.0%} to {max(own):.0%}" if own else "–"
        rows.append([entry.scenario.name, entry.algorithm, str(len(results)), str(found), kept])
    return tables.markdown(heads, rows)


def claims() -> str:
    """What the paper claims, and what the stored cells say."""
    checked = paper.claims(paper.PAPER, stored())
    return tables.markdown(CLAIM_HEADERS, claims_as_text(checked))


def goals() -> str:
    """What the adaptive method was built for, and what the stored cells say."""
    return tables.markdown(CLAIM_HEADERS, claims_as_text(beyond.goals(paper.PAPER, stored())))


def held_out_federations() -> str:
    """The held-out federations, and which of them methods were developed on."""
    return standings.federations(paper.PAPER).markdown()


def held_out(name: str) -> str:
    """One of the held-out set's tables."""
    found = standings.results(paper.PAPER, stored("held-out"))
    return standings.HELD_OUT[name](found).markdown()


def held_out_rule() -> str:
    """How the held-out set's methods are ranked."""
    return "\n".join(f"- {line}" for line in standings.RULE)


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


def machines() -> str:
    """What the cells ran on."""
    found: dict[tuple[str, str], list[float]] = {}
    for result in (result for each in stored().values() for result in each):
        row = cells.row(result)
        found.setdefault((row["device"], row["versions"]), []).append(result.seconds)
    return tables.markdown(
        ["device", "versions", "cells", "hours in all"],
        [[*key, str(len(each)), f"{sum(each) / 3600:.2f}"] for key, each in found.items()],
    )


def drawn(asked: str) -> str:
    """The figures that are there, and how much of each."""
    parts, measured = [], stored(asked)
    for item in paper.find([asked]):
        files = sorted(RESULTS.glob(f"{item.name}-*.svg"))
        if not files:
            continue
        cells = item.cells(paper.PAPER)
        there = sum(len(measured.get(entry, ())) for entry in item.entries(paper.PAPER))
        heading = f"**{item.title}** ({there} of {len(cells)} cells)"
        pictures = [f"![{item.title}, {file.stem}]({file.name})" for file in files]
        parts.append("\n".join([heading, "", *pictures]))
    return "\n\n".join(parts) or "None yet."


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


def adaptive_on_air() -> str:
    """When the adaptive method, in both forms, and others are as far, on EMNIST with rotations."""
    names = (ADAPTIVE, GENEROUS, "fedavg", "user-centric", "user-centric:streams=4", "oracle")
    entries = {name: paper.PAPER.entry(COVARIATE_SHIFT, name) for name in names}
    heads, columns = ["method"], list[list[str]]()
    for system in SYSTEMS:
        curves = {name: curve(stored()[entry], system) for name, entry in entries.items()}
        for target in (TARGET, float(curves["fedavg"].mean[-1])):
            heads.append(f"{system}, {target:.1f}%")
            times = (one.time_to(target) for one in curves.values())
            columns.append(["never" if math.isinf(time) else f"{time:.0f}" for time in times])
    return tables.markdown(heads, [list(row) for row in zip(names, *columns, strict=True)])


def worst_definitions() -> str:
    """Table II by every definition of the worst user."""
    return worst.side_by_side(paper.PAPER, stored()).markdown()


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


def of_yardsticks() -> str:
    """Others' tables, with their sources and what differs."""
    measured, parts = stored("yardsticks"), []
    for name, each in YARDSTICKS.items():
        found = compared.table(name, paper.PAPER, measured)
        differs = "\n".join(f"- {line}" for line in each.differs)
        parts.append(
            f"## {found.title}\n\n{found.markdown()}\n\nPrinted: {each.source}.\n\n"
            f"What differs:\n\n{differs}"
        )
    return "\n\n".join(parts)


def of_people(name: str) -> str:
    """A federation of natural users, and whether personalisation pays."""
    return people.table(name, paper.PAPER, stored("natural")).markdown()


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

TABLES: dict[str, Callable[[], str]] = {
    "adaptive": adaptive,
    "engine-gpu": benchmark(
        "engine-gpu",
        {"model": "model", "precision": "precision", **RATIOS, "first_round": "first round, s"},
    ),
    "engine-cpu": benchmark("engine-cpu", RATIOS),
    "chunks-cpu": benchmark(
        "chunks-cpu", {"batch": "batch", "what": "users", "ratio": "times one by one"}
    ),
    "peers": benchmark("peers-cpu", PEERS),
    "peers-alike": benchmark("peers-cpu-alike", PEERS),
    "peers-gpu": benchmark("peers-cuda", PEERS),
    "whole-run": benchmark("whole-run-cuda", WHOLE),
    "precision": benchmark("precision-cuda", PRECISION),
    "scale-cpu": benchmark("scale-cpu", SCALE),
    "scale-gpu": benchmark("scale-gpu", SCALE),
    "versions-cpu": benchmark("versions-cpu", VERSIONS),
    "versions-gpu": benchmark("versions-gpu", VERSIONS),
    "participation-cpu": benchmark("participation-cpu", PARTICIPATION),
    "participation-gpu": benchmark("participation-gpu", PARTICIPATION),
    "groups-error": group_errors,
    "second-look": second_look,
    "last-batch": last_batch,
    "bounds": bounds,
    "clusters-alike": clusters_alike,
    "yardsticks": of_yardsticks,
    **{name: partial(of_people, name) for name in natural.SCENARIOS},
    "pfedme": pfedme,
    "compression": compression,
    "rotated-mnist": rotated_mnist,
    "grid": grid,
    "on-air": on_air,
    "radio": radio,
    "left-out": left_out,
    "table1": partial(reproduced, "table1"),
    "table2": partial(reproduced, "table2"),
    "table1-beside": partial(reproduced_beside, "table1"),
    "table2-beside": partial(reproduced_beside, "table2"),
    "beyond-beside": beyond_beside,
    "beyond": partial(reproduced, "beyond"),
    "goals": goals,
    "worst-user": worst_user,
    "worst-definitions": worst_definitions,
    "adaptive-on-air": adaptive_on_air,
    "claims": claims,
    "parallel": parallel,
    "machines": machines,
    "figures": partial(drawn, "all"),
    "held-out-federations": held_out_federations,
    "held-out-rule": held_out_rule,
    "held-out-figures": partial(drawn, "held-out"),
    **{f"held-out-{name}": partial(held_out, name) for name in standings.HELD_OUT},
}


def written(text: str) -> str:
    """The text with every marked table made anew."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, t=table: f"{m[1]}{t()}\n{m[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    if "--write" in sys.argv:
        for page in PAGES:
            page.write_text(written(page.read_text()))
        for name in ("natural", "yardsticks"):
            (RESULTS / f"{name}.csv").write_text(CSVS[name](paper.PAPER, paper.Store(RESULTS)))
    else:
        for table in TABLES.values():
            print(table(), end="\n\n")
