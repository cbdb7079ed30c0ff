"""The site: built with warnings as errors, whole, reachable, and without a request to anywhere."""

import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock

import ucfl

pytest.importorskip("mkdocs", reason="the site needs the extra ucfl[docs]")
ROOT = Path(__file__).parent.parent.parent

#: A newcomer's questions, and what the page that answers each must say.
QUESTIONS = {
    "My data is a CSV file per hospital": "ucfl compare hospitals",
    "Only some clients answer": "participation",
    "Which method should I use": "layered-user-centric",
    "How many streams for my cell": "ucfl plan",
    "Where is user 7": "run.model",
    "How do I cite it": "@article",
}


class Page(HTMLParser):
    """What a page links to, loads, and is the target of; and its text."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids, self.words = [], [], set(), []
        self._link = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "preload", "icon"):
            self.loads.append(found["href"])

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Built once, also where several processes share the tests out."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return built(tmp_path_factory.mktemp("site"))
    folder = tmp_path_factory.getbasetemp().parent / f"site-{run}"
    with FileLock(f"{folder}.lock"):
        return folder if folder.exists() else built(folder)


def built(folder):
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.fail(made.stdout + made.stderr)
    return folder


@pytest.fixture(scope="session")
def pages(site):
    return {file: Page(file.read_text()) for file in site.rglob("*.html")}


def test_every_link_inside_the_site_leads_to_a_page_and_a_place_on_it(site, pages):
    broken = []
    for file, page in pages.items():
        if file.name == "404.html":
            continue  # its links are absolute, for a server
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                broken.append((file.name, link))
            elif parts.fragment and target.suffix == ".html":
                there = pages[target].ids
                if unquote(parts.fragment) not in there and parts.fragment != "__top":
                    broken.append((file.name, link))
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(pages):
    for file, page in pages.items():
        for load in page.loads:
            assert not urlsplit(load).netloc, (file.name, load)


def public_packages():
    """``ucfl`` and its packages that say what is public, but for the command line."""
    found = [ucfl]
    for one in pkgutil.iter_modules(ucfl.__path__):
        if one.ispkg and one.name != "cli":
            found.append(importlib.import_module(f"ucfl.{one.name}"))
    return [package for package in found if hasattr(package, "__all__")]


def test_every_public_name_is_documented(pages):
    anchors = set().union(*(page.ids for page in pages.values()))
    packages = public_packages()
    assert len(packages) >= 10
    missing = [
        f"{package.__name__}.{name}"
        for package in packages
        for name in package.__all__
        if f"{package.__name__}.{name}" not in anchors
    ]
    assert missing == [], "add the package's page to docs/reference/api and to mkdocs.yml"


def test_functions_that_have_a_modules_name_are_documented_as_functions(site):
    """Each has its signature, and the first sentence of its own docstring."""
    places = ("ucfl.compare", "ucfl.runs.compare", "ucfl.federation.schedule", "ucfl.report.page")
    for place in places:
        package, _, name = place.rpartition(".")
        one = getattr(importlib.import_module(package), name)
        assert inspect.isfunction(one)
        file = site / "reference" / "api" / f"{package.removeprefix('ucfl.')}.html"
        found = Page(file.read_text().partition(f'id="{place}"')[2].partition("<h2")[2])
        text = " ".join(found.text.partition("</h2")[0].split())[:2500]
        first = " ".join(one.__doc__.split(".")[0].split()).replace("``", "")
        assert f"{name}(" in text.replace(" ", ""), (place, text)
        assert first in text, (place, text)


def test_every_public_function_and_class_says_what_it_is():
    for package in public_packages():
        for name in package.__all__:
            one = getattr(package, name)
            if inspect.isclass(one) or inspect.isfunction(one):
                assert (one.__doc__ or "").strip(), f"{package.__name__}.{name}"


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_newcomers_question_is_answered_in_two_clicks(site, pages, question):
    """The question stands on the start page, with a link to the page that answers it."""
    start = (site / "index.html").read_text().partition('<div class="questions">')[2]
    place = start.index(question)
    item = start[start.rindex("<li>", 0, place) : start.index("</li>", place)]
    link = Page(item).links[0]
    answer = pages[(site / urlsplit(link).path).resolve()]
    assert QUESTIONS[question] in answer.text


def test_generated_pages_have_what_the_code_has(site, pages):
    from ucfl.algorithms import REGISTRY
    from ucfl.users import Scenario

    commands = pages[site / "reference" / "commands.html"].text
    for name in ("ucfl run", "ucfl compare", "ucfl data fetch", "--resume", "--tradeoff"):
        assert name in commands
    assert "Print this one as TOML." in commands  # the help of an argument
    fields = pages[site / "reference" / "scenario-fields.html"].text
    assert all(name in fields for name in Scenario.model_fields)
    methods = pages[site / "reference" / "methods.html"]
    assert all(f"../algorithms/{name}.html" in methods.links for name in REGISTRY)


def test_notebooks_are_shown_with_their_outputs(site, pages):
    text = pages[site / "notebooks" / "plan-a-cell.html"]
    assert "streams: silhouette-per-time is highest there" in text.text
    assert any(load.startswith("data:image/png") for load in text.loads)
