"""The pages' tables, from stored results; the tests check that the pages have exactly these.

Run with: .venv/bin/python docs/tables.py            (prints them)
          .venv/bin/python docs/tables.py --write    (puts them into the pages)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cell_tables
import file_tables

from ucfl import paper
from ucfl.paper import beyond, held_out_tables, natural
from ucfl.paper.page import CSVS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
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


TABLES: dict[str, Callable[[], str]] = {
    "adaptive": file_tables.adaptive,
    "engine-gpu": file_tables.benchmark(
        "engine-gpu",
        {
            "model": "model",
            "precision": "precision",
            **file_tables.RATIOS,
            "first_round": "first round, s",
        },
    ),
    "engine-cpu": file_tables.benchmark("engine-cpu", file_tables.RATIOS),
    "chunks-cpu": file_tables.benchmark(
        "chunks-cpu", {"batch": "batch", "what": "users", "ratio": "times one by one"}
    ),
    "peers": file_tables.benchmark("peers-cpu", file_tables.PEERS),
    "peers-alike": file_tables.benchmark("peers-cpu-alike", file_tables.PEERS),
    "peers-gpu": file_tables.benchmark("peers-cuda", file_tables.PEERS),
    "whole-run": file_tables.benchmark("whole-run-cuda", file_tables.WHOLE),
    "precision": file_tables.benchmark("precision-cuda", file_tables.PRECISION),
    "scale-cpu": file_tables.benchmark("scale-cpu", file_tables.SCALE),
    "scale-gpu": file_tables.benchmark("scale-gpu", file_tables.SCALE),
    "versions-cpu": file_tables.benchmark("versions-cpu", file_tables.VERSIONS),
    "versions-gpu": file_tables.benchmark("versions-gpu", file_tables.VERSIONS),
    "participation-cpu": file_tables.benchmark("participation-cpu", file_tables.PARTICIPATION),
    "participation-gpu": file_tables.benchmark("participation-gpu", file_tables.PARTICIPATION),
    "groups-error": file_tables.group_errors,
    "group-sizes": file_tables.group_sizes,
    "second-look": file_tables.second_look,
    "last-batch": file_tables.last_batch,
    "bounds": file_tables.bounds,
    "clusters-alike": file_tables.clusters_alike,
    "yardsticks": cell_tables.of_yardsticks,
    **{name: partial(cell_tables.of_people, name) for name in natural.SCENARIOS},
    "pfedme": file_tables.pfedme,
    "compression": file_tables.compression,
    "rotated-mnist": file_tables.rotated_mnist,
    "grid": file_tables.grid,
    "on-air": file_tables.on_air,
    "radio": file_tables.radio,
    "left-out": file_tables.left_out,
    "table1": partial(cell_tables.reproduced, "table1"),
    "table2": partial(cell_tables.reproduced, "table2"),
    "table1-beside": partial(cell_tables.reproduced_beside, "table1"),
    "table2-beside": partial(cell_tables.reproduced_beside, "table2"),
    "beyond-beside": cell_tables.beyond_beside,
    "beyond": partial(cell_tables.reproduced, "beyond"),
    "goals": partial(cell_tables.goals, beyond.goals),
    "goals-adaptive": partial(cell_tables.goals, beyond.adaptive_goals),
    "goals-layered": partial(cell_tables.goals, beyond.layered_goals),
    "worst-user": file_tables.worst_user,
    "worst-definitions": cell_tables.worst_definitions,
    "adaptive-on-air": cell_tables.adaptive_on_air,
    "claims": cell_tables.claims,
    "parallel": cell_tables.parallel,
    "machines": cell_tables.machines,
    "figures": partial(cell_tables.drawn, "all"),
    "held-out-federations": cell_tables.held_out_federations,
    "held-out-rule": cell_tables.held_out_rule,
    "held-out-figures": partial(cell_tables.drawn, "held-out"),
    **{f"held-out-{n}": partial(cell_tables.held_out, n) for n in held_out_tables.HELD_OUT},
}


def written(text: str) -> str:
    """The text with every marked table made anew; a name that no table has is an error."""
    pattern = r"(<!-- table (\S+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    if "--write" in sys.argv:
        for page in PAGES:
            page.write_text(written(page.read_text()))
        for name in ("natural", "yardsticks"):
            (RESULTS / f"{name}.csv").write_text(CSVS[name](paper.PAPER, paper.Store(RESULTS)))
    else:
        for table in TABLES.values():
            print(table(), end="\n\n")
