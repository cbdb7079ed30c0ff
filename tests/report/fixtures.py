"""Runs to report on, and a real browser to look at the page with."""

import os
import shutil

import pytest

import ucfl
from ucfl.report import gather, page, tell

METHODS = ["fedavg", "local", "user-centric", "user-centric:streams=2"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Four methods, two seeds, eight users in two groups, four rounds."""
    folder = tmp_path_factory.mktemp("runs")
    scenario = ucfl.Scenario(
        name="tiny",
        users=8,
        rounds=4,
        model="logistic",
        groups=2,
        rotations=(0, 90),
        points=800,
        last_batch="keep",
    )
    ucfl.compare(scenario, METHODS, seeds=(0, 1), out=folder)
    return folder


@pytest.fixture(scope="session")
def runs(folder):
    return gather([folder])


@pytest.fixture(scope="session")
def story(runs):
    return tell(runs)


def find_browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("UCFL_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def chromium():
    if find_browser() is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in UCFL_CHROMIUM")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser())
        yield browser
        browser.close()


@pytest.fixture
def look(chromium, tmp_path):
    """Opens a story's page; afterwards, nothing went wrong in it and nothing left it."""
    problems, requests, contexts = [], [], []

    def opened(story, width=1280, scheme="light"):
        file = tmp_path / "report.html"
        file.write_text(page(story), encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        context.on("request", lambda request: requests.append(request.url))
        tab.goto(file.as_uri())
        assert tab.locator("html[data-ready=true]").count() == 1, problems
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
    assert set(requests) <= {(tmp_path / "report.html").as_uri()}
