"""The interactive pages from stored cells say what the cells say, and nothing that they do not."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from paper.making import result
from stories import learnt_first
from ucfl.display import show_page
from ucfl.paper import EMBEDDED, ITEMS, PAPER, Cell, Store, find, in_order, make_page, survey
from ucfl.paper.items import DEAR_ROUNDS, LABEL_SHIFT_100, longest
from ucfl.paper.printed import CONCEPT_SHIFT, COVARIATE_SHIFT, LABEL_SHIFT
from ucfl.paper.reports import story, write_reports
from ucfl.report import page
from ucfl.report.answer import method_of
from ucfl.wireless import SYSTEMS

GROUPS = np.array([0, 0, 1, 1])
W = np.array([[4, 4, 1, 1], [4, 4, 1, 1], [1, 1, 4, 5], [1, 1, 5, 4]]) / 10
SILHOUETTES = np.array([0.0, 0.8, 0.3, 0.0])


def learnt(algorithm, seed, labels, **numbers):
    return result(
        PAPER.entry(CONCEPT_SHIFT, algorithm),
        seed,
        weights=W,
        silhouettes=SILHOUETTES,
        labels=labels,
        groups=GROUPS,
        **numbers,
    )


def plain(algorithm, seed, **numbers):
    return result(PAPER.entry(CONCEPT_SHIFT, algorithm), seed, groups=GROUPS, **numbers)


@pytest.fixture
def cells():
    """FedAvg with three seeds, local with one, user-centric with two."""
    return [
        *(plain("fedavg", seed, mean=40 + seed, worst=30 - seed) for seed in range(3)),
        plain("local", 1, mean=37.5, streams=0),
        *(learnt("user-centric", s, np.arange(4), mean=55 + s, streams=4) for s in (0, 2)),
    ]


@pytest.fixture
def store(tmp_path, cells):
    store = Store(tmp_path)
    for each in cells:
        store.save(Cell.of(each), each)
    return store


def on_page(file):
    """The story inside a page."""
    text = re.search(r'id="story">(.*?)</script>', file.read_text(), re.DOTALL)[1]
    return json.loads(text)


def test_the_pages_numbers_are_the_cells(store, cells):
    file = write_reports(find(["table1"]), PAPER, range(5), store)[CONCEPT_SHIFT]
    assert file == store.folder / f"report-{CONCEPT_SHIFT}.html"
    told = on_page(file)
    assert (told["users"], told["rounds"], told["seeds"]) == (4, 150, [0, 1, 2])
    for label in ("fedavg", "local", "user-centric"):
        mine = [each for each in cells if each.label == label]
        method = method_of(told, label)
        assert method["seeds"] == [each.seed for each in mine]
        for who in ("mean", "worst"):
            curve = np.mean([each.curves[f"test_{who}"] for each in mine], axis=0)
            assert method[who] == pytest.approx(curve, abs=1e-3)
            for when in ("final", "best"):
                values = [each.value(who, when) for each in mine]
                assert method[when][who] == pytest.approx(np.mean(values), abs=1e-4)
        assert method["traffic"] == [[150, *mine[0].traffic[0]]]
        assert method["low"] is method["high"] is None  # a cell has no users round by round
        for each in mine:
            users = told["populations"][each.seed]
            assert users["final"][label] == pytest.approx(each.final, abs=1e-3)
            assert users["groups"] == GROUPS.tolist()


def test_who_learns_from_whom_is_told_without_what_a_cell_does_not_keep(cells):
    told = story(CONCEPT_SHIFT, PAPER, cells)
    found = learnt_first(told["populations"][0])
    assert found["suggested"] == 2
    assert not found["own"]
    assert found["labels"] == GROUPS.tolist()
    assert np.array(found["weights"]) * told["weight_step"] == pytest.approx(W)
    assert found["reason"].startswith("The rows of W fall into groups")
    assert told["populations"][1]["collaborations"] == {}
    used = learnt("user-centric:streams=2", 0, GROUPS[::-1].copy(), streams=2)
    shown = learnt_first(story(CONCEPT_SHIFT, PAPER, [*cells, used])["populations"][0])
    assert (shown["of"], shown["own"]) == ("user-centric:streams=2", True)
    assert shown["labels"] == used.audience.labels.tolist()
    everyone = learnt("parallel-user-centric", 0, None, streams=4)
    assert learnt_first(story(CONCEPT_SHIFT, PAPER, [everyone])["populations"][0])["labels"]


def test_seeds_that_a_method_lacks_are_said(cells):
    notes = story(CONCEPT_SHIFT, PAPER, cells)["notes"]
    assert "local lacks seed 0, 2." in notes
    assert "user-centric lacks seed 1." in notes
    assert not any("fedavg" in note for note in notes)
    assert not any("reduced" in note for note in notes)
    small = [result(EMBEDDED.entry(CONCEPT_SHIFT, "fedavg"))]
    assert EMBEDDED.note in story(CONCEPT_SHIFT, EMBEDDED, small)["notes"]


def test_the_page_says_how_to_make_its_cells_again(cells):
    (command,) = story(CONCEPT_SHIFT, PAPER, cells)["repeat"]["commands"]
    assert command == (
        f"ucfl reproduce --only {CONCEPT_SHIFT} --algorithms fedavg,local,user-centric "
        "--seeds 0,1,2 --report"
    )
    form = EMBEDDED.with_rounds(1)
    told = story(CONCEPT_SHIFT, form, [result(form.entry(CONCEPT_SHIFT, "fedavg"))])
    assert told["repeat"]["commands"][0].startswith("ucfl reproduce --embedded --rounds 1 --only")


def test_a_page_has_the_cells_of_the_main_rounds_and_of_the_seeds_asked_for(store):
    short = PAPER.entry(CONCEPT_SHIFT, "pfedme:form=publication")
    assert short.scenario.rounds == DEAR_ROUNDS
    store.save(Cell.of(result(short)), result(short))
    files = write_reports(find(["all"]), PAPER, [0, 1], store)
    told = on_page(files[CONCEPT_SHIFT])
    assert {method["label"] for method in told["methods"]} == {"fedavg", "local", "user-centric"}
    assert told["seeds"] == [0, 1]
    rounds = {name: s.rounds for name, s in longest(ITEMS.values(), PAPER).items()}
    assert rounds[COVARIATE_SHIFT] == 300  # though fig-batch has fewer
    assert rounds[LABEL_SHIFT_100] == PAPER.batch_rounds
    assert set(longest(find(["fig-clusters"]), PAPER)) == {COVARIATE_SHIFT, CONCEPT_SHIFT}


def test_a_scenario_without_cells_is_one_sentence(store, capsys):
    items = find(["table1"])
    found = survey(in_order(items, PAPER, range(3)), store, "cpu")
    made = make_page(items, PAPER, found, store, with_reports=True)
    assert made.to_json()["reports"] == {
        LABEL_SHIFT: None,
        COVARIATE_SHIFT: None,
        CONCEPT_SHIFT: str(store.folder / f"report-{CONCEPT_SHIFT}.html"),
    }
    assert not (store.folder / f"report-{LABEL_SHIFT}.html").exists()
    show_page(made)
    said = capsys.readouterr().out
    assert f"No cell of {LABEL_SHIFT} is there yet, so it has no report.\n" in said
    assert f"The report of {CONCEPT_SHIFT} is in" in said
    assert make_page(items, PAPER, found, store).reports == {}


def test_in_a_browser_it_leaves_out_what_cells_do_not_have(look, cells):
    told = story(CONCEPT_SHIFT, PAPER, cells)
    tab = look(told)
    assert "1 to 3 seeds" in tab.locator("#about").inner_text()
    assert tab.locator("[data-band=users]").count() == 0
    assert tab.locator("#rounds-chart path.band").count() == 2  # local has one seed
    assert "means over 1 to 3 seeds" in tab.locator("#rounds-caption").inner_text()
    method = method_of(told, "user-centric")
    bar = tab.locator('#bars [data-bar="user-centric"]').get_attribute("data-time")
    first = next(t for t, mean in enumerate(method["mean"]) if mean >= told["target"]["value"])
    times = SYSTEMS["slow-uplink"].elapsed(cells[-1].start, cells[-1].traffic, 4)
    assert float(bar) == pytest.approx(times[first])
    tab.locator("#heat").hover()
    assert "training examples" not in tab.locator("#heat-details").inner_text()
    tab.locator("#users [data-seed]").select_option("1")
    assert (
        "No run of seed 1 has measured who learns"
        in tab.locator("#collaboration-hint").inner_text()
    )
    tab.locator("#repeat details summary").click()
    assert "cells/cifar10" in tab.locator("#runs-table").inner_text()
    assert "SHA-256" not in tab.locator("#runs-table").inner_text()
    assert "null" not in tab.locator("body").inner_text()
    alone = look(story(CONCEPT_SHIFT, PAPER, cells[:1]))
    assert alone.locator("#rounds-chart path.band").count() == 0
    assert alone.locator("#rounds-caption").inner_text() == ""


def test_the_stored_cells_make_small_pages_that_open(look):
    results = Path(__file__).parents[2] / "docs" / "results"
    if not (results / "cells").exists():
        pytest.skip("no stored cells here")
    stored = Store(results).every()
    for name, scenario in longest(ITEMS.values(), PAPER).items():
        mine = [each for each in stored if each.scenario == scenario]
        if mine:
            told = story(name, PAPER, mine)
            assert len(page(told).encode()) < 6e6
            look(told)
