"""Every block of Python or shell on the site runs, and every command that a page names exists."""

import sys

import click
import pytest

from pages.blocks import PYTHON, ROOT, SHELL, blocks, check_options, run_blocks

#: The pages of the site, and those of the project's root.
PAGES = sorted((ROOT / "docs").rglob("*.md"))
READ = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

#: Run by tests/test_docs.py, which also looks at what they say.
ELSEWHERE = {"models.md", "objectives.md", "participation.md"}
with_code = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE and any(block.runs for block in blocks(page))
]


def is_long(page):
    return any(block.mark == "long" for block in blocks(page) if block.runs)


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to run a page in; what it imports from there is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ucfl"])
    before = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - before:
        if (tmp_path / f"{module}.py").exists():
            del sys.modules[module]


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # small examples, few users
@pytest.mark.parametrize("page", [page for page in with_code if not is_long(page)], ids=name)
def test_the_code_of_a_page_runs(page, place):
    run_blocks(blocks(page), place)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
@pytest.mark.parametrize("page", [page for page in with_code if is_long(page)], ids=name)
def test_the_code_of_a_page_that_takes_minutes_runs(page, place):
    run_blocks(blocks(page), place)


@pytest.mark.parametrize(
    "page", [page for page in READ if any(b.commands for b in blocks(page))], ids=name
)
def test_the_commands_of_a_page_exist_with_their_options(page):
    for block in blocks(page):
        for words in block.commands:
            try:
                check_options(words)
            except click.ClickException as error:
                pytest.fail(f"{block.page}:{block.line}: ucfl {' '.join(words)}: {error.message}")


def test_code_that_is_not_run_says_why():
    for page in PAGES:
        for block in blocks(page):
            if block.language in (*PYTHON, *SHELL) and not block.runs:
                assert len(block.mark) > len("not run: "), (block.page, block.line)


def test_a_wrong_option_is_seen():
    check_options(["run", "rotated-mnist", "--rounds", "3"])
    for words in (["run", "--round-number", "3"], ["trian"], ["plan", "--seed", "often"]):
        with pytest.raises(click.ClickException):
            check_options(words)
