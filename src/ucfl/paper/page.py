"""What a reproduction answers with: tables, figures, claims, and how much of it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ucfl.paper.beyond import goals
from ucfl.paper.cells import Store
from ucfl.paper.claims import Claim, claims
from ucfl.paper.items import Form, Item
from ucfl.paper.reproduce import Survey
from ucfl.paper.tables import HEADERS, TABLES, Row, as_text, markdown, to_json

CLAIM_HEADERS = ("claim", "holds", "figures")


@dataclass(frozen=True)
class Page:
    """Tables and figures by item, the paper's claims, our goals, and the cells behind them.

    ``reports`` are the interactive pages by scenario, where they were asked for; None stands for a
    scenario without cells.
    """

    form: Form
    survey: Survey
    tables: dict[Item, list[Row]]
    figures: dict[Item, list[Path]]
    claims: list[Claim]
    goals: list[Claim]
    csv: Path
    reports: Mapping[str, Path | None]

    def title(self, item: Item) -> str:
        """What the item is, and whether it is the real thing."""
        return f"{item.title}{' – ' + self.form.note if self.form.note else ''}"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        items: dict[str, Any] = {
            item.name: [str(file) for file in files] for item, files in self.figures.items()
        }
        items |= {item.name: to_json(rows) for item, rows in self.tables.items()}
        return {
            "form": self.form.name or "paper",
            "reduced": bool(self.form.name),
            "seeds": self.survey.seeds,
            "done": len(self.survey.done),
            "to_do": len(self.survey.to_do),
            "csv": str(self.csv),
            "items": items,
            "reports": {name: file and str(file) for name, file in self.reports.items()},
            "claims": [asdict(claim) for claim in self.claims],
            "goals": [asdict(goal) for goal in self.goals],
        }

    def markdown(self) -> str:
        """Tables and claims as Markdown."""
        parts = [
            f"{self.title(item)}\n\n{markdown(HEADERS, as_text(rows))}"
            for item, rows in self.tables.items()
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
    """Make the tables, draw the figures, check the claims, and write ``cells.csv``."""
    from ucfl.paper.figures import FIGURES, draw  # matplotlib is slow to import
    from ucfl.paper.reports import write_reports

    measured = survey.measured
    return Page(
        form,
        survey,
        {item: TABLES[item.name](form, measured) for item in items if item.name in TABLES},
        {
            item: draw(item.name, form, measured, store.folder)
            for item in items
            if item.name in FIGURES
        },
        claims(form, measured),
        goals(form, measured) if any(item.name == "beyond" for item in items) else [],
        store.write_csv(),
        write_reports(items, form, survey.seeds, store) if with_reports else {},
    )
