"""The pages' tables that are made from stored cells (docs/results/cells)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ucfl import paper
from ucfl.paper import (
    cells,
    compared,
    held_out_tables,
    people,
    standings,
    tables,
    worst,
)
from ucfl.paper.claims import TARGET, Claim
from ucfl.paper.held_out import LAYERED
from ucfl.paper.items import ADAPTIVE, GENEROUS, ITEMS, OURS, Form
from ucfl.paper.page import CLAIM_HEADERS, claims_as_text
from ucfl.paper.printed import COVARIATE_SHIFT
from ucfl.paper.reproduce import Measured
from ucfl.paper.yardsticks import YARDSTICKS
from ucfl.runs import curve
from ucfl.wireless import SYSTEMS

RESULTS = Path(__file__).parent / "results"


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


def goals(of: Callable[[Form, Measured], list[Claim]]) -> str:
    """What a method was built for, and what the stored cells say."""
    return tables.markdown(CLAIM_HEADERS, claims_as_text(of(paper.PAPER, stored())))


def held_out_federations() -> str:
    """The held-out federations, and which of them methods were developed on."""
    return held_out_tables.federations(paper.PAPER).markdown()


def held_out(name: str) -> str:
    """One of the held-out set's tables."""
    found = standings.results(paper.PAPER, stored("held-out"))
    return held_out_tables.HELD_OUT[name](found).markdown()


def held_out_rule() -> str:
    """How the held-out set's methods are ranked."""
    return "\n".join(f"- {line}" for line in standings.RULE)


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


def worst_definitions() -> str:
    """Table II by every definition of the worst user."""
    return worst.side_by_side(paper.PAPER, stored()).markdown()


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
