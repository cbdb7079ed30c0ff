"""Time on air from stored runs: nothing is trained again."""

import json
import math

import numpy as np
import pytest

import ucfl
from ucfl.errors import UcflError
from ucfl.runs import Question, curve, time_to
from ucfl.wireless import SITES, SYSTEMS, Limits

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two methods, two seeds, on eight users."""
    folder = tmp_path_factory.mktemp("runs")
    scenario = ucfl.Scenario(users=8, rounds=4, model="logistic", groups=2)
    names = ["fedavg", "user-centric:streams=2", "oracle"]
    ucfl.compare(scenario, names, seeds=(0, 1), out=folder)
    return folder


@pytest.fixture
def runs(folder):
    return ucfl.runs.find_runs(folder)


def test_a_curve_is_accuracy_at_the_times_that_rounds_end(runs):
    run = runs["user-centric:streams=2"][0]
    found = curve(run, "wired")
    # The collaboration round takes 1 + 1 and a pass over all 500 examples, where batches of 64 see
    # 448 in a round; each round takes 2 streams + 1 + 1.
    start = 2 + 500 / 448
    assert found.times.tolist() == [start + 4 * t for t in range(5)]
    assert found.mean == pytest.approx(100 * run.per_user("test_accuracy").mean(1), abs=1e-4)
    assert found.worst == pytest.approx(100 * run.per_user("test_accuracy").min(1), abs=1e-4)
    assert found.unit == "T_dl"


def test_seeds_are_averaged_round_by_round(runs):
    each = [curve(run, "slow-uplink").mean for run in runs["fedavg"]]
    assert curve(runs["fedavg"], "slow-uplink").mean == pytest.approx(np.mean(each, axis=0))


def test_time_to_is_the_first_round_that_reaches_it(runs):
    found = curve(runs["fedavg"], "wired")
    for t in range(1, 5):
        time = time_to(runs["fedavg"], "wired", found.mean[t])
        assert time == found.times[np.flatnonzero(found.mean >= found.mean[t])[0]]
    assert time_to(runs["fedavg"], "wired", 100.1) == math.inf
    assert time_to(runs["fedavg"], SYSTEMS["wired"], 0) == found.times[0]


def test_drawn_times_differ_and_repeat(runs):
    run = runs["fedavg"][0]
    assert curve(run, "slow-uplink", seed=1).times[-1] != curve(run, "slow-uplink").times[-1]
    again = curve(run, "slow-uplink", seed=1).times
    assert np.array_equal(again, curve(run, "slow-uplink", seed=1).times)


def test_a_cell_broadcasts_to_groups_at_the_pace_of_their_slowest(runs):
    run = runs["user-centric:streams=2"][0]
    cell = SITES["urban-macro"].serving(8, run.model_bytes)
    step = np.diff(curve(run, "urban-macro").times)
    assert step == pytest.approx(cell.round_time(run.traffic, 8, run.audience))
    assert step[0] < cell.round_time(run.traffic, 8)
    oracle = runs["oracle"][0]
    assert oracle.audience.labels.tolist() == oracle.checkpoint.state["labels"].tolist()
    assert runs["fedavg"][0].audience is None


def test_a_plan_from_runs_has_times_for_each_algorithm(folder, runs):
    question = Question.from_runs(folder)
    assert question.model_bytes == runs["fedavg"][0].model_bytes == 4 * 7850
    plan = question.plan("wired", limits=Limits(max_streams=3))
    assert plan.recommended.streams <= 3
    times = question.times("wired")
    final = curve(runs["fedavg"], "wired").mean[-1]
    assert times["target"] == pytest.approx(final)
    assert set(times["algorithms"]) == set(runs)
    ordered = [row["time"] for row in times["algorithms"].values()]
    assert ordered == sorted(ordered)


def test_w_is_of_a_method_whose_streams_can_be_chosen_whatever_the_seeds(tmp_path):
    """Known mistake: a smaller seed came first, whoever's it was."""
    scenario = ucfl.Scenario(users=8, rounds=1, model="mlp", groups=2)
    ucfl.compare(scenario, ["layered-user-centric"], seeds=[0], out=tmp_path)
    assert Question.from_runs(tmp_path).source == "layered-user-centric, seed 0"
    ucfl.compare(scenario, ["user-centric"], seeds=[1, 2], out=tmp_path)
    assert Question.from_runs(tmp_path).source == "user-centric, seed 1"


def test_a_plan_says_when_runs_have_unequal_rounds(folder, tmp_path):
    assert Question.from_runs(folder).times("wired")["unequal"] == ""
    scenario = ucfl.Scenario(users=8, rounds=2, model="logistic", groups=2)
    ucfl.compare(scenario, ["fedavg"], out=tmp_path)
    ucfl.compare(scenario, ["user-centric"], rounds=3, out=tmp_path)
    times = Question.from_runs(tmp_path).times("wired")
    assert {row["rounds"] for row in times["algorithms"].values()} == {2, 3}
    assert "rounds are fedavg 2, user-centric 3;" in times["unequal"]


def test_runs_of_several_scenarios_get_a_next_step(tmp_path):
    for name, groups in {"one": 1, "other": 2}.items():
        scenario = ucfl.Scenario(name=name, users=8, rounds=1, model="logistic", groups=groups)
        ucfl.compare(scenario, ["fedavg"], out=tmp_path)
    sentence = r"their scenarios \(one and other\) differ in groups; give the folders of runs that"
    with pytest.raises(UcflError, match=sentence):
        Question.from_runs(tmp_path)


def test_a_saved_w_can_be_planned(tmp_path, runs):
    weights = runs["user-centric:streams=2"][0].checkpoint.state["weights"].numpy()
    np.save(tmp_path / "w.npy", weights)
    np.savez(tmp_path / "w.npz", weights)
    np.savetxt(tmp_path / "w.csv", weights, delimiter=",")
    plans = [
        Question.from_file(tmp_path / f"w.{end}", None).plan("wired")
        for end in ("npy", "npz", "csv")
    ]
    assert len({plan.recommended.streams for plan in plans}) == 1
    with pytest.raises(UcflError, match="--model-bytes"):
        Question.from_file(tmp_path / "w.npy", None).plan("urban-micro")
    assert Question.from_file(tmp_path / "w.npy", 1000).plan("urban-micro").unit == "s"


def test_runs_without_w_have_times_but_no_number_of_streams(runs):
    question = Question.from_runs(runs["fedavg"][0].folder)
    with pytest.raises(UcflError, match=r"write collaboration\(state\) in an"):
        question.plan("wired")
    assert list(question.times("wired", 1.0)["algorithms"]) == ["fedavg"]
    assert list(question.spendings("urban-micro")[0]) == ["fedavg"]


def test_the_stored_size_is_the_models(runs):
    about = json.loads((runs["fedavg"][0].folder / "run.json").read_text())
    assert about["model_bytes"] == 4 * about["parameters"]


@pytest.mark.long
def test_rotated_mnist_on_air(tmp_path):
    """Paper, sec. V-D: user-centric is first where the uplink is slow, k = 4 before k = m on wire.

    With the four streams of its plan, that is: a stream for each of the 20 users takes 28.6 T_dl a
    round where FedAvg takes 9.6, and three times fewer rounds is more than it saves.
    """
    names = ["fedavg", "user-centric", "user-centric:streams=4"]
    found = ucfl.compare("rotated-mnist", names, seeds=(0, 1, 2), out=tmp_path).runs
    target = curve(found["fedavg"], "wired").mean[-1]

    def time(name, system):
        return time_to(found[name], system, target)

    assert time("user-centric:streams=4", "slow-uplink") < time("fedavg", "slow-uplink")
    assert time("user-centric:streams=4", "wired") < time("user-centric", "wired")
    assert Question.from_runs(tmp_path).plan("wired").recommended.streams == 4
