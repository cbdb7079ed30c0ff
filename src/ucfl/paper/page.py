"""What a reproduction answers with: tables, figures, claims, and how much of it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ucfl.paper.beyond import RIVALS, goals
from ucfl.paper.cells import Store
from ucfl.paper.claims import Claim, claims
from ucfl.paper.compared import yardsticks_csv, yardsticks_shown
from ucfl.paper.held_out_tables import held_out_shown
from ucfl.paper.items import ITEMS, Form, Item, in_order
from ucfl.paper.people import natural_csv, natural_shown
from ucfl.paper.reproduce import Measured, Survey
from ucfl.paper.reproduce import survey as survey_of
from ucfl.paper.standings import held_out_csv
from ucfl.paper.tables import TABLES, Shown, markdown, shown
from ucfl.paper.worst import table2_shown

CLAIM_HEADERS = ("claim", "holds", "figures")

#: Tables by item, and the CSV files of items that have their own.
SHOWN: dict[str, Callable[[Form, Measured], Shown]] = {
    **{name: partial(shown, name) for name in TABLES},
    "table2": table2_shown,
    "held-out": held_out_shown,
    "natural": natural_shown,
    "yardsticks": yardsticks_shown,
}
CSVS: dict[str, Callable[[Form, Store], str]] = {
    "held-out": held_out_csv,
    "natural": natural_csv,
    "yardsticks": yardsticks_csv,
}


@dataclass(frozen=True)
class Page:
    """Tables and figures by item, the paper's claims, our goals, and the cells behind them.

    ``csv`` has a row per stored cell; ``csvs`` are those of items that have one of their own.
    ``reports`` are the interactive pages by scenario, where they were asked for; None stands for a
    scenario without cells.
    """

    form: Form
    survey: Survey
    tables: dict[Item, Shown]
    figures: dict[Item, list[Path]]
    claims: list[Claim]
    goals: list[Claim]
    csv: Path
    csvs: Mapping[Item, Path]
    reports: Mapping[str, Path | None]

    def title(self, title: str) -> str:
        """What an item or a table is, and whether it is the real thing."""
        return f"{title}{' – ' + self.form.note if self.form.note else ''}"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        items: dict[str, Any] = {
            item.name: [str(file) for file in files] for item, files in self.figures.items()
        }
        items |= {item.name: shown.values for item, shown in self.tables.items()}
        return {
            "form": self.form.name or "paper",
            "reduced": bool(self.form.name),
            "seeds": self.survey.seeds,
            "done": len(self.survey.done),
            "to_do": len(self.survey.to_do),
            "csv": str(self.csv),
            "csvs": {item.name: str(file) for item, file in self.csvs.items()},
            "items": items,
            "reports": {name: file and str(file) for name, file in self.reports.items()},
            "claims": [asdict(claim) for claim in self.claims],
            "goals": [asdict(goal) for goal in self.goals],
        }

    def markdown(self) -> str:
        """Tables and claims as Markdown."""
        parts = [
            f"{self.title(table.title)}\n\n{table.markdown()}"
            for shown in self.tables.values()
            for table in shown.tables
        ]
        checked = [each for each in (self.claims, self.goals) if each]
        parts += [markdown(CLAIM_HEADERS, claims_as_text(each)) for each in checked]
        return "\n\n".join(parts)


def claims_as_text(checked: Sequence[Claim]) -> list[list[str]]:
    """The claims as words, under ``CLAIM_HEADERS``."""
    return [[claim.claim, claim.answer, claim.figures] for claim in checked]


def make_page(
    items: Sequence[Item], form: Form, survey: Survey, store: Store, *, with_reports: bool = False
) -> Page:
    """Make the tables, draw the figures, check the claims, and write ``cells.csv``.

    An item's own CSV has all of its stored cells, whatever was asked for, and so have the goals:
    who is first does not depend on who was asked for.
    """
    from ucfl.paper.figures import FIGURES, draw  # matplotlib is slow to import
    from ucfl.paper.reports import write_reports

    measured, names = survey.measured, {item.name for item in items}
    return Page(
        form,
        survey,
        {item: SHOWN[item.name](form, measured) for item in items if item.name in SHOWN},
        {
            item: draw(item.name, form, measured, store.folder)
            for item in items
            if item.name in FIGURES
        },
        claims(form, measured) if any(not item.apart for item in items) else [],
        goals(form, _everything(form, survey.seeds, store)) if "beyond" in names else [],
        store.write_csv(),
        {
            item: store.write_csv(f"{item.name}.csv", CSVS[item.name](form, store))
            for item in items
            if item.name in CSVS
        },
        write_reports(items, form, survey.seeds, store) if with_reports else {},
    )


def _everything(form: Form, seeds: Sequence[int], store: Store) -> Measured:
    """All stored cells that the goals are about, of these seeds."""
    return survey_of(in_order([ITEMS[name] for name in RIVALS], form, seeds), store, "cpu").measured
