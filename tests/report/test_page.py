"""The page as people meet it: a real Chromium clicks, slides and types."""

import copy
import json
import sys

import numpy as np
import pytest
import torch

import ucfl
from conftest import make_users
from report.synthetic import write_runs
from stories import learnt_first
from ucfl.algorithms import Collaboration
from ucfl.algorithms.fedavg import FedAvg
from ucfl.plain import plain
from ucfl.report import gather, tell
from ucfl.runs import curve, provenance
from ucfl.wireless import SYSTEMS, Traffic, WirelessSystem

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")

HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</script><script>window.hacked = 1</script>",
    "'; window.hacked = 1; //",
    "{{story}} ${window.hacked = 1} <!-- <script>",
    "n" * 300,
    "مستخدم ‏(1)",
    "\u202eresu",
)


def drawn(tab, chart="time-chart"):
    """What the lines of a chart show: label -> (x, y)."""
    found = tab.evaluate(
        f"""[...document.querySelectorAll('#{chart} path.line')]
        .map((path) => [path.dataset.method, path.series.x, path.series.y])"""
    )
    return {label: (np.array(x), np.array(y)) for label, x, y in found}


def bars(tab):
    """Time to the target by method, in the order shown."""
    rows = tab.locator("#bars tbody tr").all()
    # float reads JavaScript's Infinity
    return {row.get_attribute("data-bar"): float(row.get_attribute("data-time")) for row in rows}


def pixels(tab, label, chart="time-chart"):
    return tab.locator(f'#{chart} path.line[data-method="{label}"]').get_attribute("d")


def check_times(tab, runs, system, target):
    lines, times = drawn(tab), bars(tab)
    for label, each in runs.items():
        there = curve(each, system)
        assert lines[label][0] == pytest.approx(there.times, abs=1e-6), label
        assert lines[label][1] == pytest.approx(there.mean, abs=1e-6), label
        assert times[label] == pytest.approx(there.time_to(target), abs=1e-6), label
    assert list(times.values()) == sorted(times.values())


def test_the_answer_comes_first(look, story):
    tab = look(story)
    assert tab.locator("#answer").inner_text() == story["answer"][0]
    assert story["answer"][-1] in tab.locator("#rest").inner_text()
    assert tab.title() == "tiny · ucfl report"


def test_the_tiles_claim_what_the_test_shows(look, tmp_path):
    """Ditto is better than fedavg with sixty users; with eight, nobody can tell."""
    methods = ("fedavg", "local", "ditto")
    write_runs(tmp_path / "many", methods=methods, seeds=1, rounds=60, users=60)
    tiles = look(tell(gather([tmp_path / "many"]))).locator("#tiles").inner_text()
    assert "against fedavg" in tiles
    assert "who has only 4 test examples" in tiles
    assert "local is first, after" in tiles  # not "sooner": somebody else is
    assert "T_dl; T_dl is the time of one broadcast" in tiles
    assert "sooner" not in tiles
    write_runs(tmp_path / "few", methods=methods, seeds=1, rounds=60, users=5)
    story = tell(gather([tmp_path / "few"]))
    tab = look(story)
    assert "no difference from fedavg shown" in tab.locator("#tiles").inner_text()
    of = tab.locator("#tiles-of").inner_text()
    assert of.startswith(story["chosen"])
    assert "highest of those that no test tells apart" in of
    assert tab.locator("#answer").inner_text().startswith("No difference is shown")


def test_hints_are_there_only_where_they_apply(look, tmp_path):
    scenario = ucfl.Scenario(name="quick", model="logistic", batch=8, rounds=2)
    users = make_users([20, 8, 13], held=120)
    for seed in (0, 1):  # given users are the same with every seed
        ucfl.run(scenario, "fedavg", seed=seed, users=users, out=tmp_path / f"{seed}")
    tab = look(tell(gather([tmp_path])))
    assert "Switch methods" not in tab.locator("#rounds-hint").inner_text()
    hint = tab.locator("#users-hint").inner_text()
    assert "draws other users" not in hint
    assert "test example" not in hint  # 120 each: one is worth less than a point


def test_sliders_move_curves_and_bars_to_what_the_wireless_room_computes(look, story, runs):
    tab = look(story)
    check_times(tab, runs, SYSTEMS["slow-uplink"], story["target"]["value"])
    before = pixels(tab, "local")
    for rho, t_min, mean_delay in ((0.1, 0, 0), (2.5, 7.3, 1.9), (10, 20, 10)):
        tab.locator("#rho").fill(str(rho))
        tab.locator("#t_min").fill(str(t_min))
        tab.locator("#mean_delay").fill(str(mean_delay))
        system = WirelessSystem(rho=rho, t_min=t_min, mean_delay=mean_delay)
        check_times(tab, runs, system, story["target"]["value"])
        assert tab.locator("#rho-out").inner_text() == f"{rho:g}"
    assert pixels(tab, "local") != before
    tab.locator("#target").fill("40")
    check_times(tab, runs, system, 40)
    assert tab.locator("#bars-head").inner_text() == "Time to 40.0% mean accuracy"


def test_sliders_work_by_keyboard(look, story, runs):
    tab = look(story)
    tab.locator("#rho").focus()
    tab.keyboard.press("ArrowRight")
    check_times(tab, runs, WirelessSystem(4.1, 1, 1), story["target"]["value"])


def test_the_papers_systems_are_buttons(look, story, runs):
    tab = look(story)
    for name, system in SYSTEMS.items():
        tab.locator(f"button[data-system={name}]").click()
        check_times(tab, runs, system, story["target"]["value"])
        pressed = tab.locator("button[data-system][aria-pressed=true]")
        assert pressed.all_inner_texts() == [name]
        assert tab.locator("#rho").input_value() == f"{system.rho:g}"
    tab.locator("#rho").fill("3")
    assert tab.locator("button[data-system][aria-pressed=true]").count() == 0


def test_radio_cells_show_their_seconds_and_joules(look, story):
    tab = look(story)
    for site in story["cells"]:
        tab.locator(f"button[data-site={site}]").click()
        words = tab.locator("#radio-words").inner_text()
        assert words.startswith(f"{site}: ")
        assert "in seconds" not in words
        for spent, words in (("joules", "for an energy"), ("time", "for a time")):
            tab.locator(f"button[data-spent={spent}]").click()
            assert tab.locator("#radio-front th").first.inner_text() == words
            first, round_ = story["cells"][site]["fronts"][spent][0]
            row = tab.locator("#radio-front tbody tr").first.inner_text()
            assert first in row
            cost = story["cells"][site]["methods"][first][spent][round_]
            assert row.startswith(f"from {cost:.4g}"[:8])


def test_streams_that_were_not_run_cost_their_time_and_borrow_an_accuracy(look, story, runs):
    tab = look(story)
    tab.locator("#streams").fill("4")
    line = drawn(tab)["what if k = 4"]
    near = runs["user-centric:streams=2"]
    rounds = np.array([[4.0, 1.0, 1.0]] * 4)
    system = SYSTEMS["slow-uplink"]
    assert line[0] == pytest.approx(system.elapsed(Traffic(1, 1), rounds, 8), abs=1e-6)
    assert line[1] == pytest.approx(curve(near, system).mean, abs=1e-6)
    note = tab.locator("#streams-note").inner_text()
    assert "k = 4 was not run" in note
    assert "user-centric:streams=2 (k = 2)" in note
    lasts = system.round_time(Traffic(4, 1), 8)
    assert f"lasts {lasts:.1f} T_dl" in note
    assert "what if k = 4" in bars(tab)
    for k, label in ((2, "user-centric:streams=2"), (8, "user-centric")):
        tab.locator("#streams").fill(str(k))
        assert set(drawn(tab)) == set(runs)
        note = tab.locator("#streams-note").inner_text()
        assert f"Measured: k = {k} was run, as {label}." in note


def test_methods_are_switched_off_and_on(look, story, runs):
    tab = look(story)
    chips = tab.locator("[data-toggle=fedavg]").all()
    assert len(chips) == 3  # one above each chart
    for chip in chips:
        chip.click()
        assert [each.get_attribute("aria-pressed") for each in chips] == ["false"] * 3
        assert set(drawn(tab)) == set(drawn(tab, "rounds-chart")) == set(runs) - {"fedavg"}
        assert "fedavg" not in bars(tab)
        chip.press("Enter")
        assert set(drawn(tab)) == set(drawn(tab, "rounds-chart")) == set(runs)


def test_rounds_show_mean_or_worst_and_spread_over_users_or_seeds(look, story, runs):
    tab = look(story)
    lines = drawn(tab, "rounds-chart")
    for label, each in runs.items():
        assert lines[label][1] == pytest.approx(curve(each, "wired").mean)
    assert tab.locator("#rounds-chart path.band").count() == len(runs)
    tab.get_by_role("button", name="Worst user").click()
    lines = drawn(tab, "rounds-chart")
    for label, each in runs.items():
        assert lines[label][1] == pytest.approx(curve(each, "wired").worst, abs=1e-3)
    tab.get_by_role("button", name="Mean user").click()
    tab.get_by_role("button", name="Spread of users").click()
    assert "middle 80%" in tab.locator("#rounds-caption").inner_text()
    tab.get_by_role("button", name="none", exact=True).click()
    assert tab.locator("#rounds-chart path.band").count() == 0


def test_hovering_and_arrow_keys_read_values(look, story):
    tab = look(story)
    tab.locator("#rounds-chart svg").hover()
    assert tab.locator("#tooltip b").inner_text() == "round 2"
    assert tab.locator("#tooltip div").count() == len(story["methods"])
    tab.mouse.move(0, 0)
    assert tab.locator("#tooltip").is_hidden()
    tab.locator("#rounds-chart svg").focus()
    tab.keyboard.press("ArrowRight")
    said = tab.locator("#live").inner_text()
    assert said.startswith("round 3: ")
    for method in story["methods"]:
        assert f"{method['label']} {method['mean'][3]:.1f}%" in said


def column(tab, key):
    heads = tab.locator("#users-table thead th button").all()
    place = [head.get_attribute("data-key") for head in heads].index(key)
    cells = tab.locator(f"#users-table tbody tr > :nth-child({place + 1})").all_inner_texts()
    return [float(text.strip("%+").replace("−", "-")) for text in cells]


def test_the_users_who_lose_by_personalisation_come_first_and_columns_sort(look, story):
    tab = look(story)
    tab.locator("#focus").select_option("user-centric:streams=2")
    users = story["populations"][0]
    mine = np.array(users["final"]["user-centric:streams=2"])
    gains = {rival: mine - users["final"][rival] for rival in ("fedavg", "local")}
    least = np.minimum(gains["fedavg"], gains["local"])
    order = np.argsort(least, kind="stable")
    assert tab.locator("#users-table tbody th").all_inner_texts() == [f"user-{i}" for i in order]
    assert tab.locator("#users-table tr.loser").count() == int((least < 0).sum())
    assert column(tab, "gain-fedavg") == pytest.approx(gains["fedavg"][order], abs=0.06)
    for key in ("size", "group", "stream", "gain-local", "method-fedavg"):
        head = tab.locator(f'#users-table thead button[data-key="{key}"]')
        sorted_head = tab.locator("#users-table th[aria-sort]")
        ways = []
        for act in (head.click, lambda head=head: head.press("Enter")):
            act()
            ways.append(sorted_head.get_attribute("aria-sort"))  # fails unless there is one
            values = column(tab, key)
            assert values == sorted(values, reverse=ways[-1] == "descending")
        assert set(ways) == {"ascending", "descending"}


def test_the_heat_map_tells_a_pair_of_users_apart(look, story):
    tab = look(story)
    learnt = learnt_first(story["populations"][0])
    order = np.argsort(learnt["labels"], kind="stable")
    heat, details = tab.locator("#heat"), tab.locator("#heat-details")
    heat.focus()
    for _ in range(8):
        tab.keyboard.press("ArrowUp")
        tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowDown")
    weight = learnt["weights"][order[1]][order[0]] * story["weight_step"]
    assert f"{100 * weight:.2f}%" in details.inner_text()
    side = heat.bounding_box()["width"]
    heat.hover(position={"x": side - 4, "y": side - 4})
    last = learnt["weights"][order[-1]][order[-1]] * story["weight_step"]
    assert f"{100 * last:.2f}%" in details.inner_text()
    assert f"user-{order[-1]}" in details.inner_text()
    assert "80 training examples" in details.inner_text()
    assert details.locator("svg rect").count() == 10  # one bar for each label


def test_labels_are_called_by_their_names(look, tmp_path):
    users = make_users([20, 8, 13], groups=[0, 0, 1])
    names = ("ant", "b" * 60, "<b>cow", *map(str, range(3, users.classes)))
    users = ucfl.Users(**{**vars(users), "class_names": names})
    scenario = ucfl.Scenario(name="named", model="logistic", batch=8, rounds=1)
    ucfl.run(scenario, "user-centric:streams=2", users=users, out=tmp_path / "r")
    told = tell(gather([tmp_path / "r"]))
    assert told["populations"][0]["class_names"] == list(names)
    picture = look(told).locator("#heat-details svg").first
    assert picture.locator("text").first.text_content().startswith("ant")
    for name in names:
        assert f"{name}: " in picture.get_attribute("aria-label")
        assert f"{name}: " in picture.text_content()


def texts_drawn(tab):
    """The texts of a drawing of W; other colours draw it anew."""
    tab.evaluate("""() => {
      const context = CanvasRenderingContext2D.prototype, before = context.fillText;
      window.texts = [];
      context.fillText = function (text, ...place) {
        window.texts.push(text);
        return before.call(this, text, ...place);
      };
    }""")
    tab.locator("#theme").click()
    return tab.evaluate("window.texts")


def test_the_edges_of_w_have_the_names_of_few_users(look, story):
    names = story["populations"][0]["names"]
    seen = texts_drawn(look(story))
    assert set(seen) == set(names)
    assert all(seen.count(name) % 2 == 0 for name in names)  # of its row, and of its column
    long = copy.deepcopy(story)
    long["populations"][0]["names"][0] = "a name that is far too long for the edge"
    cut = [text for text in texts_drawn(look(long)) if text.startswith("a name")]
    assert cut
    assert all(text.endswith("…") for text in cut)


def test_a_head_of_the_users_table_breaks_after_a_methods_name(look, story):
    label = "user-centric:streams=2"
    head = look(story).locator(f'#users-table thead button[data-key="method-{label}"] .name')
    assert head.inner_text() == label
    assert "user-centric:<wbr>streams=2" in head.inner_html()


def test_every_method_that_measured_w_can_be_looked_at(look, story):
    tab = look(story)
    users = story["populations"][0]
    assert list(users["collaborations"]) == ["user-centric:streams=2", "user-centric"]
    picker = tab.locator("#learner")
    assert picker.input_value() == "user-centric:streams=2"
    assert "Frames are the 2 streams that the run used." in hint(tab)
    picker.select_option("user-centric")
    assert "(user-centric, seed 0)" in hint(tab)
    assert "The run has a stream for each user" in hint(tab)
    assert users["collaborations"]["user-centric"]["reason"] in tab.locator("#reason").inner_text()


def hint(tab):
    return tab.locator("#collaboration-hint").inner_text()


def test_streams_in_the_table_of_users_are_those_of_the_method_that_is_looked_at(look, story):
    tab = look(story)
    tab.locator("#focus").select_option("user-centric:streams=2")
    labels = story["populations"][0]["collaborations"]["user-centric:streams=2"]["labels"]
    assert sorted(column(tab, "stream")) == sorted(labels)
    tab.locator("#focus").select_option("user-centric")  # a stream for each user
    assert tab.locator('#users-table [data-key="stream"]').count() == 0


def test_streams_silhouettes_and_the_reason_are_shown_for_each_seed(look, story):
    tab = look(story)
    for place, users in enumerate(story["populations"]):
        tab.locator("#users [data-seed]").select_option(str(place))
        learnt = learnt_first(users)
        assert tab.locator("#collaboration [data-seed]").input_value() == str(place)
        assert learnt["reason"] in tab.locator("#reason").inner_text()
        assert tab.locator("#verdict").inner_text() == f"By silhouette, k = {learnt['suggested']}"
        line = drawn(tab, "silhouette-chart")["silhouette"]
        assert line[1] == pytest.approx(learnt["silhouettes"])
        assert tab.locator("#silhouette-chart circle.ring").count() == 1
        assert tab.locator("#graph circle.who").count() == story["users"]
        assert tab.locator("#graph circle.node").count() == 2


def test_everything_has_a_name_for_screen_readers(look, story):
    tab = look(story)
    nameless = tab.evaluate(
        """[...document.querySelectorAll('button, input, select, canvas, svg:not([aria-hidden])')]
        .filter((node) => !(node.textContent.trim() || node.ariaLabel || node.labels?.length))
        .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    assert tab.locator("th:not([scope])").count() == 0
    assert tab.locator("html[lang=en]").count() == 1
    assert tab.locator("h1").count() == 1


def test_dark_and_light_follow_the_system_and_the_button(look, story):
    for scheme in ("light", "dark"):
        tab = look(story, scheme=scheme)
        paper = "getComputedStyle(document.body).backgroundColor"
        first = tab.evaluate(paper)
        tab.locator("#theme").click()
        second = tab.evaluate(paper)
        assert {first, second} == {"rgb(255, 255, 255)", "rgb(20, 22, 26)"}
        assert (first == "rgb(255, 255, 255)") == (scheme == "light")
        tab.emulate_media(media="print")
        assert tab.evaluate(paper) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_is_wider_than_the_window(look, story, width):
    tab = look(story, width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_how_to_repeat_it(look, story):
    tab = look(story)
    shown = tab.locator("#repeat").text_content()
    assert story["repeat"]["commands"] == []
    assert story["repeat"]["programs"][0] in shown
    for run in story["repeat"]["runs"]:
        assert run["kept"] in shown
        assert run["data"][:16] in shown
    assert "torch" in shown


def test_hostile_names_are_shown_as_text_and_nothing_runs(look, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ucfl", "run", HOSTILE[1]])
    users = make_users([20] * len(HOSTILE), groups=[0, 1] * (len(HOSTILE) // 2))
    users = ucfl.Users(**{**vars(users), "names": HOSTILE, "source": HOSTILE[2]})
    monkeypatch.setattr(provenance, "_on_command_line", True)
    for place, algorithm in enumerate(("fedavg", "local", "user-centric:streams=2")):
        name = f"{HOSTILE[0]} {HOSTILE[5]} {HOSTILE[6]}"
        scenario = ucfl.Scenario(
            name=name, description=HOSTILE[2], model="logistic", batch=8, rounds=2
        )
        home = tmp_path / "runs" / f"{place} \"'><script>alert(1)<" / "script>"
        ucfl.run(scenario, algorithm, users=users, out=home)
    story = tell(gather(sorted((tmp_path / "runs").iterdir())))
    # A label cannot come from outside today; the page must not count on it.
    text = json.dumps(plain(story)).replace('"local"', json.dumps(HOSTILE[1]))
    story = json.loads(text)
    tab = look(story, width=900)
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("script").count() == 2
    assert tab.locator("img").count() == 0
    assert set(tab.locator("#users-table tbody th").all_text_contents()) == set(HOSTILE)
    assert tab.locator("#title").text_content() == name
    assert HOSTILE[2] in tab.locator("#about").text_content()
    assert HOSTILE[2] in tab.locator("#facts").text_content()
    assert "onerror" in tab.locator("#commands").text_content()
    assert "<script>alert(1)<" in tab.locator("#runs-table").text_content()
    tab.locator("#rounds-chart svg").hover()
    assert HOSTILE[1] in tab.locator("#tooltip").text_content()
    tab.locator("#heat").hover()
    tab.locator("#graph circle.who").first.hover()
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("document.documentElement.scrollWidth") <= 900


def test_one_run_without_streams_has_a_page_too(look, tmp_path):
    scenario = ucfl.Scenario(name="quick", model="logistic", batch=8, rounds=2)
    ucfl.run(scenario, "fedavg", users=make_users([20, 8, 13]), out=tmp_path / "r")
    tab = look(tell(gather([tmp_path / "r"])))
    assert "collaboration(state)" in tab.locator("#collaboration-hint").inner_text()
    assert tab.locator("#streams-control").is_hidden()
    assert tab.locator("#users-table tbody tr").count() == 3


def test_a_persons_own_method_has_its_lines_and_panels(look, tmp_path):
    alike = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1.0]])

    class Mine(FedAvg):
        def collaboration(self, state):
            return Collaboration.of(alike)

    scenario = ucfl.Scenario(name="quick", model="logistic", batch=8, rounds=2)
    users = make_users([20, 8, 13])
    ucfl.compare(scenario, [Mine, "fedavg", "local"], users=users, out=tmp_path)
    story = tell(gather([tmp_path]))
    tab = look(story)
    assert set(drawn(tab)) == set(drawn(tab, "rounds-chart")) == {"Mine", "fedavg", "local"}
    assert set(bars(tab)) == {"Mine", "fedavg", "local"}
    tab.locator("#heat").focus()
    tab.keyboard.press("ArrowUp")
    assert "%" in tab.locator("#heat-details").inner_text()
    line = drawn(tab, "silhouette-chart")["silhouette"]
    assert line[1] == pytest.approx(learnt_first(story["populations"][0])["silhouettes"])
    assert tab.locator("#graph circle.who").count() == 3


def test_users_without_test_data_and_a_user_alone_have_a_page_too(look, tmp_path):
    scenario = ucfl.Scenario(name="quick", model="logistic", batch=8, rounds=2)
    pair = (np.random.default_rng(0).normal(size=(6, 4)), np.arange(6) % 2)
    nothing = (pair[0][:0], pair[1][:0])
    for m in (1, 3):
        users = ucfl.Users.from_arrays([pair] * m, [nothing] * m, [nothing] * m, classes=2)
        for algorithm in ("fedavg", "user-centric:variance_batch=2"):
            ucfl.run(scenario, algorithm, users=users, out=tmp_path / f"{m}" / algorithm)
        tab = look(tell(gather([tmp_path / f"{m}"])))
        assert tab.locator("#users-table tbody tr").count() == m
        assert set(bars(tab).values()) == {np.inf}


def test_a_large_comparison_opens(look, tmp_path):
    """12 methods x 5 seeds x 300 rounds x 100 users; benchmarks/page.py times it."""
    write_runs(tmp_path / "runs")
    tab = look(tell(gather([tmp_path / "runs"])))
    assert len(drawn(tab)) == 12
    assert tab.locator("#users-table tbody tr").count() == 100
    assert "statistics over 100 users and 5 seeds" in tab.locator("#notes").inner_text()
