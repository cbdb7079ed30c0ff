"""What a report says, before anybody draws it."""

import json
import shlex
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

import ucfl
from commands import run_ucfl
from conftest import make_users
from report.synthetic import write_runs
from runs.test_runs import write_users
from stories import learnt_first
from ucfl import display
from ucfl.errors import UcflError
from ucfl.measure import ACCURACY
from ucfl.plain import plain
from ucfl.report import compose, gather, page, tell
from ucfl.report.answer import answer, method_curve, method_of
from ucfl.runs import curve, find_runs
from ucfl.runs.folder import HISTORY
from ucfl.runs.schema import json_digest
from ucfl.wireless import SITES, SYSTEMS, WirelessSystem

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")

QUICK = ucfl.Scenario(name="quick", model="logistic", lr=0.05, batch=8, rounds=3)


def quick(out, algorithm="fedavg", **options):
    users = options.pop("users", None) or make_users([20, 8, 13], groups=[0, 0, 1])
    ucfl.run(QUICK, algorithm, users=users, out=out, **options)
    return out


def told(*folders):
    return tell(gather(folders))


def test_times_are_those_of_the_runs_themselves(story, runs):
    for system in [*SYSTEMS.values(), WirelessSystem(rho=0.7, t_min=3.3, mean_delay=2.9)]:
        for label, each in runs.items():
            count = story["participants"]
            mine = method_curve(method_of(story, label), story | {"participants": count}, system)
            theirs = curve(each, system)
            assert mine.times == pytest.approx(theirs.times, rel=1e-12)
            assert np.array_equal(mine.mean, theirs.mean)
            for target in (20, float(theirs.mean[2]), 101):
                assert mine.time_to(target) == pytest.approx(theirs.time_to(target))


def test_radio_cells_have_the_runs_own_seconds_joules_and_fronts(story, runs):
    assert set(story["cells"]) == set(SITES)
    for name, site in SITES.items():
        cell = story["cells"][name]
        for label, each in runs.items():
            found = cell["methods"][label]
            assert found["time"] == pytest.approx(curve(each, site).times, rel=1e-5)
            one = each[0].record
            spent = site.serving(one.users, one.model_bytes).energy(
                one.start, one.traffic, one.users, one.audience
            )
            assert found["joules"][0] == pytest.approx(spent[0], rel=1e-5)
            assert found["joules"][-1] > found["joules"][0]
        for kind in ("time", "joules"):
            costs = [cell["methods"][label][kind][t] for label, t in cell["fronts"][kind]]
            assert costs == sorted(costs)
            assert "oracle" not in {label for label, _ in cell["fronts"][kind]}


def test_a_part_of_the_users_is_said_and_timed_as_such(tmp_path):
    story = told(quick(tmp_path / "r", participation="2 users"))
    run = ucfl.Run.open(tmp_path / "r")
    part, users = story["participants"], story["users"]
    assert (part, users) == (2, 3)
    assert any(f"{part} of the {users} users take part" in note for note in story["notes"])
    system = SYSTEMS["slow-uplink"]
    mine = method_curve(method_of(story, "fedavg"), story | {"participants": part}, system)
    assert mine.times == pytest.approx(curve(run, system).times)
    everyone = method_curve(method_of(story, "fedavg"), story | {"participants": users}, system)
    assert mine.times[-1] < everyone.times[-1]  # the slowest of fewer is faster


def test_accuracies_are_those_of_the_comparison(story, runs):
    comparison = ucfl.runs.Comparison(next(iter(runs.values()))[0].scenario, (0, 1), runs)
    for label, row in comparison.to_json()["algorithms"].items():
        method = method_of(story, label)
        for when in ("final", "best"):
            assert method[when]["mean"] == pytest.approx(row["mean"][when])
            assert method[when]["worst"] == pytest.approx(row["worst"][when])
            assert method[when]["deviation"] == pytest.approx(row["std"]["mean"][when])
            assert method[when]["worst_deviation"] == pytest.approx(row["std"]["worst"][when])


def test_the_band_over_users_holds_the_middle_of_them(story, runs):
    method = method_of(story, "fedavg")
    tests = [100 * run.per_user("test_accuracy") for run in runs["fedavg"]]
    assert method["low"] == pytest.approx(
        np.mean([np.quantile(test, 0.1, axis=1) for test in tests], 0), abs=1e-3
    )
    assert (np.array(method["low"]) <= np.array(method["mean"]) + 1e-3).all()


def test_every_seed_has_its_users_their_data_and_their_streams(story, runs):
    assert [users["seed"] for users in story["populations"]] == [0, 1]
    for users in story["populations"]:
        stored = next(r for r in runs["user-centric:streams=2"] if r.seed == users["seed"])
        assert np.sum(users["label_counts"], axis=1).tolist() == [80] * 8
        assert users["groups"] == [0, 0, 0, 0, 1, 1, 1, 1]
        learnt = learnt_first(users)
        assert learnt["of"] == "user-centric:streams=2"  # shows a plan in use, so it comes first
        assert set(users["collaborations"]) == {"user-centric", "user-centric:streams=2"}
        assert learnt["labels"] == stored.checkpoint.state["labels"].tolist()
        weights = stored.checkpoint.state["weights"].numpy()
        assert np.array(learnt["weights"]) * story["weight_step"] == pytest.approx(
            weights, abs=story["weight_step"]
        )


def test_the_answer_names_a_method_that_was_not_told_the_groups(tmp_path):
    story = told(quick(tmp_path / "a"), quick(tmp_path / "b", "oracle"))
    assert story["chosen"] == "fedavg"
    assert story["answer"][0].startswith("fedavg gives the 3 users")  # there is nobody to beat
    assert any("told the true groups" in sentence for sentence in story["answer"])


def differing(shift, users=20, seed=0):
    """Users whose labels need an answer of their own (shift 1), or are all alike (shift 0)."""
    rng = np.random.default_rng(seed)
    pairs = []
    for user in range(users):
        y = rng.integers(0, 2, 60)
        x = rng.normal(size=(60, 4)) + 1.5 * y[:, None]
        pairs.append((x.astype(np.float32), (y + shift * user) % 2))
    return ucfl.Users.from_arrays(pairs)


def test_methods_that_do_not_differ_are_not_called_best(tmp_path):
    users = differing(0)
    folders = [quick(tmp_path / m, m, users=users) for m in ("fedavg", "fedprox:mu=0.001")]
    story = told(*folders)
    (pair,) = story["compared"].values()
    assert not pair["shown"]
    first, second, *_ = story["answer"]
    assert first.startswith("No difference is shown in mean accuracy between ")
    assert "paired test over 20 users does not tell them apart (error rate 5%" in first
    assert second.startswith("Of these, ")
    assert not any("best:" in sentence or "sooner" in sentence for sentence in story["answer"])


def test_a_method_that_serves_everyone_better_is_called_best_with_its_test(tmp_path):
    users = differing(1)
    story = told(*(quick(tmp_path / m, m, users=users) for m in ("fedavg", "local")))
    assert story["chosen"] == "local"
    assert story["compared"]["fedavg"]["shown"]
    assert story["answer"][0].startswith("local serves the 20 users best: ")
    assert story["answer"][1].startswith("It is better than fedavg by a paired test over 20 users")


def test_three_seeds_are_compared_by_their_means(tmp_path):
    folders = [
        quick(tmp_path / f"{m}{seed}", m, users=differing(1, seed=seed), seed=seed)
        for m in ("fedavg", "local")
        for seed in range(3)
    ]
    pair = told(*folders)["compared"]["fedavg"]
    assert (pair["over"], pair["count"]) == ("seeds", 3)
    assert pair["shown"]


def test_users_of_a_folder_are_the_same_with_every_seed_and_tested_on_other_examples(tmp_path):
    write_users(tmp_path / "hospitals")
    folder = ucfl.Scenario(dataset=str(tmp_path / "hospitals"), model="mlp", batch=8, rounds=1)
    for seed in (0, 1):
        ucfl.run(folder, "local", seed=seed, out=tmp_path / f"{seed}")
    assert told(tmp_path / "0", tmp_path / "1")["redrawn"] == "examples"
    assert told(tmp_path / "0")["redrawn"] == ""
    same = [quick(tmp_path / f"given{seed}", seed=seed) for seed in (0, 1)]
    assert told(*same)["redrawn"] == ""
    drawn = ucfl.Scenario(users=4, points=80, model="logistic", batch=8, rounds=1)
    for seed in (0, 1):
        ucfl.run(drawn, "local", seed=seed, out=tmp_path / f"drawn{seed}")
    assert told(tmp_path / "drawn0", tmp_path / "drawn1")["redrawn"] == "users"


def test_parts_are_told_seed_by_seed_where_seeds_differ(tmp_path):
    for seed in (0, 1):
        quick(tmp_path / f"{seed}", "layered-user-centric:groups=told:body=groups", seed=seed)
    first, second = (run.record for each in find_runs(tmp_path).values() for run in each)
    (note,) = [n for n in compose([first, second])["notes"] if "by parts" in n]
    assert "seed" not in note
    found = replace(second.collaboration, parts=())
    (note,) = [
        n
        for n in compose([first, replace(second, collaboration=found)])["notes"]
        if "by parts" in n
    ]
    assert note.endswith(" in 2 streams (seed 0), as a whole (seed 1).")


def test_seeds_that_agree_have_a_deviation_of_zero_and_one_seed_has_none(tmp_path):
    users = make_users([20, 8, 13], held=5)
    for seed in (0, 1):
        quick(tmp_path / f"{seed}", "local", users=users, seed=seed)
    story = told(tmp_path)
    story["methods"][0]["final"]["deviation"] = 0.0
    assert "90.0\u00a0±\u00a00.0% mean accuracy" in answer(story)[0]
    assert "±" not in told(tmp_path / "0")["answer"][0]


def test_a_worst_user_of_few_test_examples_is_marked(tmp_path):
    users = make_users([20, 8, 13], held=5)
    many = make_users([20, 8, 13], held=120)
    few, enough = told(quick(tmp_path / "a", users=users)), told(quick(tmp_path / "b", users=many))
    assert "(of only 5 test examples)" in few["answer"][0]
    assert few["methods"][0]["worst_examples"] == [5, 5]
    assert "test example" not in enough["answer"][0]


def test_first_is_said_against_everything_that_is_there(tmp_path):
    write_runs(tmp_path, methods=("fedavg", "local", "ditto"), seeds=1, rounds=60, users=60)
    story = told(tmp_path)
    assert story["chosen"] == "ditto"
    (sentence,) = [s for s in story["answer"] if "fedavg's final" in s]
    for name, times in story["race"].items():
        first = min(times, key=times.get)
        said = sentence.split(f"on {name} (")[1].split(")")[0]
        assert said == (
            "the first" if first == "ditto" else f"{first} is first, after {times[first]:.0f}"
        )
    assert "local is first" in sentence  # it sends nothing, and this target is within its reach


def test_best_under_final_is_explained_where_it_happens(tmp_path):
    ordinary = ucfl.Run.open(quick(tmp_path / "a")).record
    rising = {"test_mean": np.array([20, 50, 60, 70.0]), "validation_mean": np.array([0, 9, 8, 7])}
    late = replace(ordinary, curves={**ordinary.curves, **rising})  # validation chooses round 1
    falling = {name: curve[::-1] for name, curve in rising.items()}
    early = replace(ordinary, curves={**ordinary.curves, **falling})
    (note,) = [one for one in compose([late])["notes"] if "worse than final" in one]
    assert note.startswith("Best is worse than final for fedavg: validation data choose the round")
    assert not any("worse than final" in one for one in compose([early])["notes"])


def test_one_run_is_not_called_the_best(tmp_path):
    story = told(quick(tmp_path / "a"))
    assert len(story["answer"]) == 1
    assert "best" not in story["answer"][0]


def test_a_run_that_is_not_finished_is_told_and_said_to_be_so(tmp_path):
    def on_round(progress):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(ucfl.runs.Stopped):
        quick(tmp_path / "a", on_round=on_round)
    story = told(tmp_path / "a")
    assert story["rounds"] == 2
    assert "fedavg is not finished: 2 of 3 rounds (seed 0)." in story["notes"]


def test_unequal_rounds_are_said_with_the_answer(tmp_path):
    one, two = quick(tmp_path / "a"), quick(tmp_path / "b", "local", rounds=2)
    other = quick(tmp_path / "c", "local", rounds=3, seed=1)
    assert told(one)["unequal"] == ""
    story = told(one, two, other)
    assert story["answer"][1] == story["unequal"]
    assert "rounds are fedavg 3, local 2 and 3;" in story["unequal"]
    assert story["unequal"] in page(story)


def test_users_without_test_data_do_not_break_the_page(tmp_path):
    pairs = [(np.random.default_rng(i).normal(size=(6, 4)), np.arange(6) % 2) for i in range(3)]
    nothing = [(x[:0], y[:0]) for x, y in pairs]
    users = ucfl.Users.from_arrays(pairs, nothing, nothing, classes=2)
    story = told(quick(tmp_path / "a", users=users))
    json.dumps(plain(story), allow_nan=False)
    assert page(story)


def test_older_run_folders_are_reported_without_histograms(tmp_path):
    folder = quick(tmp_path / "a")
    about = json.loads((folder / "run.json").read_text())
    about["users"] = {key: about["users"][key] for key in ("names", "source")}
    del about["format"], about["sha256"]
    (folder / "run.json").write_text(json.dumps(about))
    story = told(folder)
    assert any("was not kept" in note for note in story["notes"])
    assert page(story)


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    first = quick(tmp_path / "a")
    with pytest.raises(UcflError, match="is given twice; give the folders"):
        gather([first, first])
    other, users = tmp_path / "b", make_users([20, 8, 13], groups=[0, 0, 1])
    ucfl.run(QUICK.change({"lr": 0.1}), "local", users=users, out=other)
    with pytest.raises(UcflError, match="scenarios differ in lr"):
        gather([first, other])
    third = quick(tmp_path / "c", "local", users=make_users([20, 8, 12], groups=[0, 0, 1]))
    with pytest.raises(UcflError, match="different users' data"):
        gather([first, third])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UcflError, match="holds no run"):
        gather([tmp_path / "empty"])


def test_a_run_without_a_stored_round_is_refused(tmp_path):
    folder = quick(tmp_path / "a")
    (folder / "checkpoint.safetensors").unlink()
    (folder / HISTORY).unlink()
    with pytest.raises(UcflError, match="stored no round yet"):
        told(folder)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.9, 0.2, 0.8], "1 of 3 users is better off with fedavg than with mine: bo (-30.0)."),
        ([0.9, 0.2, 0.3], "2 of 3 users are better off with fedavg than with mine: bo"),
        ([0.9, 0.8, 0.8], "0 of 3 users are better off with fedavg than with mine."),
    ],
)
def test_users_who_are_better_off_with_one_model_are_counted_in_words(capsys, values, words):
    final = {"mine": [100 * value for value in values], "fedavg": [50.0] * 3}
    users = {"seed": 0, "names": ["al", "bo", "cy"], "final": final, "collaborations": {}}
    display._show_users({"personal": "mine", "measure": asdict(ACCURACY)}, users)
    assert words in capsys.readouterr().out


def test_the_page_is_one_file_that_names_no_other_place(story):
    text = page(story)
    assert text == page(story)
    assert "{{" not in text.split("<script", 1)[0]
    for word in ("http://", "https://", "src=", "@import", "url("):
        rest = text.replace("http://www.w3.org/2000/svg", "").replace("url(#", "")
        assert word not in rest, word
    assert "default-src 'none'" in text


def test_large_comparisons_are_small_pages(tmp_path):
    """12 methods x 5 seeds x 300 rounds x 100 users: users become statistics."""
    write_runs(tmp_path)
    assert sum(map(len, find_runs(tmp_path).values())) == 60
    text = page(told(tmp_path))
    assert len(text.encode()) < 6e6


def test_a_huge_w_is_left_out(tmp_path, monkeypatch):
    folder = quick(tmp_path / "a", "user-centric:streams=2:variance_batch=2")
    monkeypatch.setattr("ucfl.report.story.MOST_WEIGHTS", 8)
    assert learnt_first(told(folder)["populations"][0])["weights"] is None


PROGRAM = """
import numpy as np, ucfl

rng = np.random.default_rng(0)
users = ucfl.Users.from_arrays([(rng.normal(size=(20, 3)), [0, 1] * 10)] * 2)
scenario = ucfl.Scenario(name="small", model="mlp", batch=8, rounds=1)
ucfl.run(scenario, "fedavg", users=users, out="mine")
"""


def test_a_run_says_whether_a_program_or_the_command_line_made_it(tmp_path):
    (tmp_path / "trial.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "trial.py", "--secret"]
    subprocess.run(command, cwd=tmp_path, check=True)
    repeat = tell(gather([tmp_path / "mine"]))["repeat"]
    assert repeat["commands"] == []
    assert repeat["programs"] == ["Made from Python, by trial.py: run that program again."]
    write_users(tmp_path / "data")
    arguments = ["run", "data", "--model", "mlp", "--rounds", "1", "--out", "typed"]
    run_ucfl(*arguments, cwd=tmp_path, check=True)
    repeat = tell(gather([tmp_path / "typed"]))["repeat"]
    assert repeat["commands"] == [shlex.join(["ucfl", *arguments])]
    assert repeat["programs"] == []


def test_what_earlier_versions_stored_of_a_program_is_no_command(tmp_path):
    run = ucfl.run(QUICK, "fedavg", users=make_users([20, 8]), out=tmp_path / "r")
    about = json.loads((run.folder / "run.json").read_text())
    about["command"] = ["ucfl"]
    (run.folder / "run.json").write_text(json.dumps(about | {"sha256": json_digest(about)}))
    repeat = tell(gather([run.folder]))["repeat"]
    assert repeat["commands"] == []
    assert repeat["programs"] == ["Made from Python: run that program or notebook again."]


def test_the_page_knows_what_classes_are_called(tmp_path):
    users = make_users([20, 8, 13])
    names = tuple(f"class {i}" for i in range(users.classes))
    users = replace(users, class_names=names)
    assert told(quick(tmp_path / "r", users=users))["populations"][0]["class_names"] == list(names)
    plain = told(quick(tmp_path / "s"))
    assert plain["populations"][0]["class_names"] is None
