"""Deadlines: users whose models would arrive too late drop out of that round."""

import json
import math

import numpy as np
import pytest
import torch

import ucfl
from commands import run_ucfl
from conftest import make_users, model_for
from ucfl.algorithms import REGISTRY
from ucfl.errors import UcflError
from ucfl.runs import curve
from ucfl.runs.deadline import Deadline
from ucfl.users import Scenario
from ucfl.wireless import SITES, SYSTEMS, Audience, RadioCell, Traffic, WirelessSystem

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are alike
SIZES, GROUPS, ROUNDS = [20, 8, 16, 33, 13, 24], [0, 0, 0, 1, 1, 1], 6
SCENARIO = Scenario(name="six", users=6, rounds=ROUNDS, lr=0.05, batch=8, model="mlp")


def users():
    return make_users(SIZES, groups=GROUPS)


def within(deadline, system="slow-uplink", **fields):
    return SCENARIO.change({"deadline": deadline, "system": system, **fields})


def trained(scenario, name, out, **options):
    return ucfl.run(scenario, name, users=users(), out=out, **options)


#: Longer than the fastest user of any method needs, and too short for some of six users.
TIGHT = {"scaffold": 25.0, "parallel-user-centric": 41.0, "pfedme": 75.0}
TIGHT |= {"user-centric": 12.0, "adaptive-user-centric": 12.0, "fedem": 27.0, "fedmoe": 24.0}
TIGHT |= {"fedfomo": 11.5, "fedavg-finetune": 9.0, "local": 2.5}
TIGHT |= {"fedrep": 24.0, "fedbabu": 15.0, "lg-fedavg": 2.5}
TIGHT |= {"per-fedavg": 50.0, "fedamp": 12.0, "ifca": 14.0, "pfedgraph": 12.0}


@pytest.mark.parametrize("name", REGISTRY)
def test_late_users_are_absent_and_a_run_goes_on_where_it_stopped(name, tmp_path):
    scenario = within(TIGHT.get(name, 7.5), participation="5 users", model=model_for(name))
    whole = trained(scenario, name, tmp_path / "whole")
    present, late = whole.checkpoint.cohorts, whole.checkpoint.missed
    assert late.any()
    assert present.any()
    assert not (present & late).any()
    asked = (present | late).sum(1)
    assert set(asked.tolist()) <= {5, 6}  # FL+HC asks everyone once
    trained(scenario.change({"rounds": 3}), name, tmp_path / "half")
    half = trained(scenario, name, tmp_path / "half", resume=True)
    assert torch.equal(half.checkpoint.cohorts, present)
    assert torch.equal(half.checkpoint.missed, late)
    assert half.history.equals(whole.history)


def test_late_users_are_as_absent_as_others(tmp_path):
    """The run with a deadline is the run of a person who names the same cohorts."""
    late = trained(within(8.5), "fedper", tmp_path / "late")
    there = [torch.nonzero(row)[:, 0].tolist() for row in late.checkpoint.cohorts]
    assert 6 in {len(row) for row in there} != {6}  # somebody is late, but not in every round
    named = trained(SCENARIO, "fedper", tmp_path / "n", participation=lambda t: there[t - 1])
    assert torch.equal(late.checkpoint.state["theta"], named.checkpoint.state["theta"])
    assert torch.equal(late.checkpoint.traffic, named.checkpoint.traffic)
    assert late.history.equals(named.history)


def test_a_deadline_that_everyone_meets_changes_nothing(tmp_path):
    free = trained(SCENARIO, "fedavg", tmp_path / "free")
    met = trained(within(1e6), "fedavg", tmp_path / "met")
    assert torch.equal(free.checkpoint.state["theta"], met.checkpoint.state["theta"])
    assert met.checkpoint.present is None
    assert not met.checkpoint.missed.any()
    times = [curve(run, "slow-uplink").times for run in (free, met)]
    assert np.array_equal(*times)


def test_when_everyone_is_late_the_round_changes_nothing_and_takes_the_deadline(
    tmp_path, monkeypatch
):
    slow = Deadline.computing
    monkeypatch.setattr(
        Deadline, "computing", lambda self, t: slow(self, t) * 0 + (100.0 if t in (2, 3) else 1.0)
    )
    said = []
    run = trained(within(7.0), "fedavg", tmp_path / "r", on_note=said.append)
    one, three, four = (
        trained(within(7.0, rounds=t), "fedavg", tmp_path / f"{t}").checkpoint.state["theta"]
        for t in (1, 3, 4)
    )
    assert torch.equal(one, three)
    assert not torch.equal(three, four)
    assert run.checkpoint.cohorts.any(1).tolist() == [True, False, False, True, True, True]
    assert run.checkpoint.traffic[1].tolist() == [0, 0, 0]
    assert np.diff(curve(run, "slow-uplink").times)[[1, 2]].tolist() == [7.0, 7.0]
    assert said[-1] == (
        "deadline of 7 T_dl in slow-uplink: in a round, 2.0 of 6 users were late on average, and "
        "in 2 of 6 rounds all who were asked."
    )


def test_a_round_with_late_users_takes_the_deadline_in_that_system_alone(tmp_path):
    run = trained(within(8.5), "fedavg", tmp_path / "r")
    late = run.checkpoint.missed.any(1).numpy()
    assert late.any()
    assert not late.all()
    steps = np.diff(curve(run, "slow-uplink").times)
    assert steps[late] == pytest.approx(8.5)
    assert (steps <= 8.5 + 1e-9).all()
    assert np.array_equal(np.diff(curve(run, SYSTEMS["slow-uplink"]).times), steps)
    everyone = 1 + 4 + SYSTEMS["slow-uplink"].computing(6)
    assert steps[~late] == pytest.approx(min(8.5, everyone))
    assert (np.diff(curve(run, "slow-uplink", seed=1).times) <= 8.5 + 1e-9).all()
    # Elsewhere nobody waits for who is absent.
    assert np.diff(curve(run, "fast-uplink").times) == pytest.approx(1 + 2 + 1)
    assert np.diff(curve(run, "slow-uplink:rho=5").times).max() > 8.5


def test_who_sends_more_has_more_late_users(tmp_path):
    """Six streams take six times as long to broadcast; FedPer's upload is shorter than FedAvg's."""
    share = {
        name: trained(within(13.0), name, tmp_path / name).checkpoint.missed.double().mean()
        for name in ("user-centric", "fedavg")
    }
    assert share["user-centric"] > share["fedavg"]


def deadline(people, seed=0, time=7.0, system="slow-uplink"):
    scenario = SCENARIO.change({"deadline": time, "system": system})
    return Deadline.of(scenario, ucfl.runs.federation(scenario, seed, users=people), people)


def test_computing_times_depend_on_seed_round_and_user_alone():
    people = users()
    one, again, other = deadline(people), deadline(people), deadline(people, seed=1)
    order = [3, 0, 5, 1, 2, 4]
    moved = deadline(people.select(order))
    for t in range(1, 20):
        assert np.array_equal(one.computing(t), again.computing(t))
        assert np.array_equal(one.computing(t)[order], moved.computing(t))
        assert not np.array_equal(one.computing(t), other.computing(t))
        assert not np.array_equal(one.computing(t), one.computing(t + 1))
    drawn = np.concatenate([one.computing(t) for t in range(1, 5000)])
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(2, rel=0.02)  # T_min + 1/μ
    assert drawn.var() == pytest.approx(1, rel=0.05)


def test_arrivals_by_hand():
    system = WirelessSystem(rho=4, t_min=1, mean_delay=1)
    computing = np.array([1.0, 2.5, 7.0])
    assert system.arrivals(Traffic(2, 1), computing).tolist() == [7, 8.5, 13]
    assert system.arrivals(Traffic(0, 0, 2), computing).tolist() == [2, 5, 14]
    # A model takes 1, 1/2 and 1/4 s either way.
    ratios = np.array([10 * math.log10(x) for x in (1, 3, 15)])
    cell = RadioCell(
        bandwidth=8e6,
        snr_down_db=ratios,
        snr_up_db=ratios,
        model_bytes=10**6,
        uplink_sharing="sequential",
        gap_db=0.0,
        t_min=0.0,
    )
    assert cell.upload_times(1, 3) == pytest.approx([1, 0.5, 0.25])
    # All hear one broadcast until 1; ready at 1.2, 1.0, 1.1: turns in the order 1, 2, 0.
    ready = np.array([0.2, 0.0, 0.1])
    assert cell.arrivals(Traffic(1, 1), ready) == pytest.approx([2.75, 1.5, 1.75])
    # Streams of their own, 1 + 1/2 + 1/4 in all, come before anybody computes.
    own = Audience.of(np.array([0, 1, 2]))
    assert cell.arrivals(Traffic(3, 1), ready, own) == pytest.approx([3.5, 2.25, 2.5])
    # Who cannot be in time is given no turn, and keeps nobody waiting.
    eager = np.array([0.0, 0.1, 0.2])
    assert cell.arrivals(Traffic(1, 1), eager, deadline=1.9) == pytest.approx([2, 1.6, 1.85])
    assert cell.arrivals(Traffic(1, 1), eager) == pytest.approx([2, 2.5, 2.75])


def test_in_a_cell_the_far_users_are_late(tmp_path):
    """With constant computing times, those with the slowest uplinks miss it, always the same."""
    people = users()
    size = ucfl.runs.federation(SCENARIO, users=people).rows.bytes
    cell = SITES["urban-macro"].serving(6, size)
    arrivals = cell.arrivals(Traffic(1, 1), np.ones(6))
    between = float(np.sort(arrivals)[3:5].mean())
    run = trained(within(between, "urban-macro"), "fedavg", tmp_path / "r")
    assert (run.checkpoint.missed.numpy() == (arrivals > between)).all()
    assert np.diff(curve(run, "urban-macro").times) == pytest.approx(between)


def test_a_cohort_shares_the_band_of_the_cell_among_itself(tmp_path):
    """Alone in the band, everyone is in time with what six at once could not send."""
    size = ucfl.runs.federation(SCENARIO, users=users()).rows.bytes
    cell, one = SITES["urban-macro"].serving(6, size), np.eye(6, dtype=bool)
    alone = [cell.among(row).arrivals(Traffic(1, 1), np.ones(1))[0] for row in one]
    assert max(alone) < cell.arrivals(Traffic(1, 1), np.ones(6)).max()
    scenario = within(float(max(alone)) + 1e-9, "urban-macro", participation="1 user", rounds=30)
    run = trained(scenario, "fedavg", tmp_path / "r")
    assert not run.checkpoint.missed.any()
    assert run.checkpoint.cohorts.any(0).all()
    both = trained(scenario.change({"participation": 1.0}), "fedavg", tmp_path / "s")
    assert both.checkpoint.missed.any()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"deadline": 5.0}, "a deadline needs the network whose time it is in, as system = 'slow"),
        ({"system": "wired"}, "'system' has no effect without a deadline"),
        ({"deadline": 0, "system": "wired"}, "deadline: Input should be greater than 0"),
        ({"deadline": -1, "system": "wired"}, "deadline: Input should be greater than 0"),
        ({"deadline": "soon", "system": "wired"}, "deadline: Input should be a valid number"),
        ({"deadline": math.inf, "system": "wired"}, "deadline: Input should be"),
        ({"deadline": 5.0, "system": "wird"}, "did you mean 'wired'"),
        ({"deadline": 5.0, "system": "wired:rho=0"}, "above 0"),
        (
            {"deadline": 5.9, "system": "slow-uplink"},
            "nobody can meet a deadline of 5.9 T_dl in slow-uplink: the fastest user takes 6 T_dl "
            "for a round of fedavg; give a longer deadline.",
        ),
    ],
)
def test_mistakes_are_told_in_one_sentence(fields, sentence, tmp_path):
    with pytest.raises(UcflError) as told:
        trained(SCENARIO.change(fields), "fedavg", tmp_path / "r")
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)
    again = trained(SCENARIO, "fedavg", tmp_path / "r")  # nothing is in the way
    assert again.checkpoint.round == ROUNDS


def test_the_deadline_is_part_of_the_configuration(tmp_path):
    trained(within(7.0), "fedavg", tmp_path / "r")
    with pytest.raises(UcflError, match="different deadline"):
        trained(within(8.0), "fedavg", tmp_path / "r", resume=True)
    stored = json.loads((tmp_path / "r" / "run.json").read_text())["scenario"]
    assert (stored["deadline"], stored["system"]) == (7.0, "slow-uplink")


def test_from_the_command_line(tmp_path):
    done = run_ucfl(
        "run", "--set", "deadline=2", "--set", "system=wired", "--model", "logistic", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "the fastest user takes 3 T_dl for a round of" in " ".join(done.stderr.split())
