"""What the documentation says is what the stored results and the code say."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from pages.blocks import blocks, run_blocks
from ucfl.algorithms import REGISTRY
from ucfl.federation import OBJECTIVES
from ucfl.paper import PAPER, Store
from ucfl.paper.page import CSVS
from ucfl.paper.standings import held_out_csv

ROOT = Path(__file__).parent.parent


sys.path.append(str(ROOT / "docs"))
tables = importlib.import_module("tables")


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in tables.PAGES])
def test_the_tables_equal_the_stored_results(page):
    text = (ROOT / page).read_text()
    assert re.search(r"<!-- table \S+ -->\n(?:## [^\n]*\n\n)?\|", text)
    assert tables.written(text) == text


def test_a_table_that_nothing_makes_is_an_error():
    """Known mistake: one that was renamed stayed in its page, and was never made again."""
    with pytest.raises(KeyError, match="nobodys"):
        tables.written("<!-- table nobodys -->\n| a |\n<!-- end -->")
    marked = [page for page in (ROOT / "docs").rglob("*.md") if "<!-- table " in page.read_text()]
    assert {ROOT / "README.md", *marked} == set(tables.PAGES)


def test_the_csv_of_cells_equals_the_stored_cells():
    results = ROOT / "docs" / "results"
    assert (results / "cells.csv").read_text() == Store(results).csv()


def test_the_csv_of_the_held_out_set_equals_the_stored_cells():
    file = ROOT / "docs" / "results" / "held-out.csv"
    assert file.read_text() == held_out_csv(PAPER, Store(ROOT / "docs" / "results"))


@pytest.mark.parametrize("name", ["natural", "yardsticks"])
def test_the_csv_of_an_item_equals_the_stored_cells(name):
    file = ROOT / "docs" / "results" / f"{name}.csv"
    assert file.read_text() == CSVS[name](PAPER, Store(ROOT / "docs" / "results"))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_say_how_many_methods_there_are(page):
    beginning = (ROOT / page).read_text()[:1200]
    assert f"{len(REGISTRY)} methods" in beginning


def test_every_algorithm_has_a_page():
    pages = {page.stem for page in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert pages == set(REGISTRY)
    for name in REGISTRY:
        text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
        for part in (
            "Idea",
            "Equation",
            "Cost of a round",
            "When to use it",
            "Absent users",
            "Reference",
        ):
            assert f"**{part}.**" in text


def test_every_test_that_the_equations_page_names_exists():
    page = (ROOT / "docs" / "equations.md").read_text()
    code = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"\btest_[a-z0-9_]+\b(?!\.py)", page)
    assert len(named) > 15
    for name in named:
        assert f"def {name}(" in code, name


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # few users, all alike
def test_the_code_of_the_page_about_models_runs_and_says_what_the_page_says(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "models.md").read_text()
    monkeypatch.chdir(tmp_path)
    scope, said = {}, ""
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, scope)
        said = said or f"{scope['users']!r}\n{scope['run']!r}\n"
    (shown,) = re.findall(r"```\n(Users: .*?)```", page, re.DOTALL)
    measured = r"\d+\.\d|worst .*,"  # another machine may round otherwise
    assert re.sub(measured, "", shown) == re.sub(measured, "", said)
    right = scope["answers"].numpy() == scope["labels"]
    assert right.mean() > 0.2  # the mixture, on its own user's raw images
    assert (tmp_path / "models" / "rows" / "ben.safetensors").is_file()


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # few users
def test_the_code_of_the_page_about_objectives_runs(tmp_path, monkeypatch):
    scope = _executed("objectives.md", tmp_path, monkeypatch)
    assert [measure.name for measure in scope["run"].measures] == ["within_a_tenth", "huber"]
    page = (ROOT / "docs" / "objectives.md").read_text()
    for name, made in OBJECTIVES.items():  # the table of the page
        row = re.search(rf"\| `{name}`.*", page)[0]
        assert re.findall(r"`(\w+)`", row.split("|")[4]) == [*made().measured]


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # few users
def test_the_code_of_the_page_about_participation_runs(tmp_path, monkeypatch):
    scope = _executed("participation.md", tmp_path, monkeypatch)
    assert scope["run"].newcomers["before"]["mean"] > 75  # nobody's global model: half


def _executed(page, folder, monkeypatch):
    """The names that a page's blocks, run one after another, leave."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["ucfl"])
    return run_blocks(blocks(ROOT / "docs" / page), folder)


def test_every_link_in_the_pages_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_page_on_deployment_has_the_stored_runs_seconds():
    spec = importlib.util.spec_from_file_location("times", ROOT / "docs" / "deploy_times.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = json.loads((ROOT / "docs" / "results" / "deploy.json").read_text())
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert module.table(result) in page
    assert result["command"] in page
    names = [name for name, kind in REGISTRY.items() if kind.deployable]
    assert all(f"`{name}`" in page for name in names)
