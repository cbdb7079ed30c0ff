"""What every algorithm promises where only a part of the users takes part in a round."""

import dataclasses

import numpy as np
import pytest
import torch

import ucfl
from conftest import make_federation, make_users, model_for
from ucfl.algorithms import REGISTRY, find
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.federation.cohorts import Cohorts
from ucfl.runs.building import federation
from ucfl.users import Participation, Scenario

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are alike
every_algorithm = pytest.mark.parametrize("name", REGISTRY)
SIZES, GROUPS, ROUNDS = [20, 8, 16, 33, 13, 24], [0, 0, 0, 1, 1, 1], 4
COHORTS = {1: [0, 3], 2: [1, 2, 5], 3: [4], 4: [0, 5]}
SCENARIO = Scenario(name="six", users=6, rounds=ROUNDS, lr=0.05, batch=8, model="mlp")
#: Everyone is asked in the round in which these methods cluster.
ASKS_EVERYONE = {"fl-hc": 4}


def users():
    return make_users(SIZES, groups=GROUPS)


def among(fed, algorithm, t):
    chosen = torch.zeros(fed.m, dtype=torch.bool)
    chosen[COHORTS[t]] = True
    return fed.among(None if ASKS_EVERYONE.get(algorithm.name) == t else chosen)


def trained(name, people, spoilt=False):
    """The states of all rounds; with ``spoilt``, absent users' data is NaN in each of them."""
    algorithm, fed = find(name), make_federation(people, model_for(name))
    state = algorithm.start(fed)
    states = [state]
    for t in range(1, ROUNDS + 1):
        here = among(fed, algorithm, t)
        if spoilt and here.present is not None:
            absent = ~here.present
            ruined = dataclasses.replace(
                here.users,
                **{
                    split: dataclasses.replace(
                        part := here.users.split(split),
                        inputs=torch.where(
                            absent.view(-1, *[1] * (part.inputs.dim() - 1)), torch.nan, part.inputs
                        ),
                    )
                    for split in ("train", "validation", "test")
                },
            )
            here.users = ruined
            here._with_models = {}
        state = algorithm.round(here, state, t)
        states.append(state)
    return algorithm, fed, states


@every_algorithm
def test_absent_users_data_never_enters_a_round(name):
    algorithm, _, states = trained(name, users())
    _, _, spoilt = trained(name, users(), spoilt=True)
    for ours, theirs in zip(states, spoilt, strict=True):
        assert torch.equal(algorithm.models(ours), algorithm.models(theirs))
        assert algorithm.models(ours).isfinite().all()


@every_algorithm
def test_absent_users_keep_what_is_theirs(name):
    """A personal or local model stays as it is while its user is away."""
    algorithm, fed, states = trained(name, users())
    servers = ("fedem", "fedmoe", "layered-user-centric")  # but for a prior
    if algorithm.tested_model == "aggregated" or name in servers:
        pytest.skip("its model is the server's, whoever takes part")
    part = getattr(algorithm, "personal", None)  # the others move on
    theirs = fed.part(part).mask if part else slice(None)
    for t in range(1, ROUNDS + 1):
        here = among(fed, algorithm, t)
        away = ~here.present
        before, after = (algorithm.models(states[i])[away][:, theirs] for i in (t - 1, t))
        assert torch.equal(before, after)


@every_algorithm
def test_participation_of_everyone_is_the_same_run_to_the_bit(name, tmp_path):
    people = users()
    scenario = SCENARIO.change({"model": model_for(name)})
    plain = ucfl.run(scenario, name, users=people, out=tmp_path / "a")
    asked = ucfl.run(
        scenario, name, users=people, participation=lambda t: range(6), out=tmp_path / "b"
    )
    for key, value in plain.checkpoint.state.items():
        other = asked.checkpoint.state[key]
        same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        assert same, key
    assert plain.checkpoint.present is None
    assert asked.checkpoint.present is None


@every_algorithm
def test_a_cohort_of_one_user_trains(name, tmp_path):
    scenario = SCENARIO.change({"model": model_for(name)})
    run = ucfl.run(
        scenario, name, users=users(), participation=lambda t: [t % 6], out=tmp_path / "r"
    )
    expected = torch.zeros(ROUNDS, 6, dtype=torch.bool)
    expected[torch.arange(ROUNDS), torch.arange(1, ROUNDS + 1) % 6] = True
    if name in ASKS_EVERYONE:
        expected[ASKS_EVERYONE[name] - 1] = True
    assert torch.equal(run.checkpoint.cohorts, expected)
    assert not np.isnan(run.per_user("test_accuracy")).any()
    one = run.checkpoint.traffic[0]
    several = {"scaffold": 2, "fedem": 3, "fedmoe": 3, "parallel-user-centric": 6, "ifca": 4}
    assert one[0] <= several.get(name, 1)


@every_algorithm
def test_a_run_goes_on_in_the_middle_of_its_cohorts(name, tmp_path):
    scenario = SCENARIO.change({"participation": 0.5, "model": model_for(name)})
    whole = ucfl.run(scenario, name, users=users(), out=tmp_path / "whole")
    ucfl.run(scenario, name, users=users(), rounds=2, out=tmp_path / "half")
    half = ucfl.run(scenario, name, users=users(), out=tmp_path / "half", resume=True)
    assert torch.equal(whole.checkpoint.cohorts, half.checkpoint.cohorts)
    assert half.checkpoint.present is not None
    for metric, values in whole.checkpoint.history.items():
        assert torch.equal(values, half.checkpoint.history[metric])


def test_a_round_without_anybody_changes_nothing_and_costs_nothing(tmp_path):
    run = ucfl.run(
        SCENARIO,
        "fedavg",
        users=users(),
        participation=lambda t: [] if t in (1, 3) else [1, 2],
        out=tmp_path / "r",
    )
    test = run.per_user("test_accuracy")
    assert np.array_equal(test[0], test[1])
    assert np.array_equal(test[2], test[3])
    assert run.checkpoint.traffic.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]]
    times = ucfl.runs.curve(run, "wired").times
    assert times[1] == times[0]
    assert times[2] > times[1]


def test_a_stream_with_nobody_keeps_its_model():
    theta = torch.arange(8.0).view(4, 2)
    mixing = Mixing.within(torch.tensor([1, 1, 1, 1]), torch.tensor([0, 0, 1, 1]))
    there = mixing.among(torch.tensor([True, False, False, False]))
    assert torch.equal(there @ theta, theta[[0, 0, 2, 3]])
    assert there.sent == 1
    assert mixing.sent == 2


def test_fedavg_of_a_cohort_is_the_average_of_those_who_took_part():
    fed = make_federation(users())
    state = {"theta": fed.initial()}
    here = torch.tensor([0, 3])
    local = fed.train(fed.initial(), 1)[here.to(fed.device)]
    weights = torch.tensor([20.0, 33.0], dtype=local.dtype, device=local.device) / 53
    present = torch.zeros(6, dtype=torch.bool)
    present[here] = True
    after = find("fedavg").round(fed.among(present), state, 1)["theta"]
    assert torch.allclose(after, (weights @ local).expand(6, -1), atol=1e-12)


def test_cohorts_depend_on_seed_and_round_alone():
    scenario = SCENARIO.change({"users": 20, "participation": 0.3, "points": 400})
    one, other, again = (federation(scenario, seed) for seed in (0, 1, 0))
    drawn = [[fed.cohort(t) for t in range(1, 40)] for fed in (one, other, again)]
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert {int(cohort.sum()) for cohort in drawn[0]} == {6}
    assert torch.stack(drawn[0]).any(0).all()  # everyone's turn comes


def test_drawn_by_size_large_users_take_part_more_often():
    people = make_users([100, 100, 1, 1, 1, 1, 1, 1])
    scenario = SCENARIO.change({"users": 8, "participation": "2 users:by=size"})
    fed = federation(scenario, users=people)
    often = torch.stack([fed.cohort(t) for t in range(1, 501)]).double().mean(0)
    assert (often[:2] > 0.9).all()
    assert (often[2:] < 0.1).all()


def test_an_availability_trace_says_who_can_be_asked(tmp_path):
    people = users()
    file = tmp_path / "trace.csv"
    rows = [(1, "user-0"), (1, "user-4"), (3, "user-2")]
    file.write_text("round,user\n" + "".join(f"{t},{user}\n" for t, user in rows))
    scenario = SCENARIO.change({"participation": f"1.0:trace={file}"})
    run = ucfl.run(scenario, "fedavg", users=people, out=tmp_path / "r")
    there = [torch.nonzero(row)[:, 0].tolist() for row in run.checkpoint.cohorts]
    assert there == [[0, 4], [], [2], [0, 4]]  # after its last round it starts again
    file.write_text("round,user\n1,user-0\n")
    with pytest.raises(UcflError, match="different participation"):
        ucfl.run(scenario, "fedavg", users=people, out=tmp_path / "r", resume=True)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (0, "above 0 and up to 1"),
        (0.0, "above 0 and up to 1"),
        (1.5, "above 0 and up to 1"),
        (2, "'10 users'"),
        ("nan", "above 0 and up to 1"),
        ("some", "above 0 and up to 1"),
        ("0 users", "above 0 and up to 1"),
        ("0.5:by=age", "unknown way to draw users"),
        ("0.5:from=here", "unknown option of participation"),
        ("7 users", "asks for 7 users, and there are 6"),
        ("0.5:trace=nowhere.csv", "cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_sentence(value, match, tmp_path):
    with pytest.raises(UcflError, match=match) as told:
        ucfl.run(
            SCENARIO.change({"participation": value}), "fedavg", users=users(), out=tmp_path / "r"
        )
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "text", ["user,when\na,1\n", "round,user\n0,user-0\n", "round,user\n1,x\n"]
)
def test_a_trace_that_is_none_is_told_with_its_line(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UcflError, match="line 2"):
        Participation.of(f"1.0:trace={tmp_path / 't.csv'}").available(["user-0"])


def test_a_function_of_a_person_may_name_users(tmp_path):
    run = ucfl.run(
        SCENARIO, "fedavg", users=users(), participation=lambda t: ["user-3", 1], out=tmp_path / "r"
    )
    assert run.checkpoint.cohorts.sum(0).nonzero()[:, 0].tolist() == [1, 3]
    with pytest.raises(UcflError, match="unknown user 'user-33'; did you mean"):
        ucfl.run(SCENARIO, "fedavg", users=users(), participation=lambda t: ["user-33"], out="r")


def test_a_function_of_a_person_must_name_users_that_are_there(tmp_path):
    with pytest.raises(UcflError, match="round 1 names users that are not there"):
        ucfl.run(SCENARIO, "fedavg", users=users(), participation=lambda t: [6], out=tmp_path / "r")


def test_absent_users_optimisers_keep_their_states(tmp_path):
    scenario = SCENARIO.change({"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep"})
    run = ucfl.run(
        scenario, "fedavg", users=users(), participation=COHORTS.__getitem__, out=tmp_path / "r"
    )
    steps = run.checkpoint.state["optimiser/0/2"]
    turns = [sum(user in cohort for cohort in COHORTS.values()) for user in range(6)]
    each = [max(1, size // 8) for size in SIZES]
    assert steps.tolist() == [turn * count for turn, count in zip(turns, each, strict=True)]


def test_a_share_is_of_those_who_are_available_and_newcomers_are_passed_over(tmp_path):
    """Known mistakes: half of all users were drawn, and newcomers in a trace were unknown."""
    late = ucfl.users.with_newcomers(make_users([9] * 12), 0.2, 0)
    trace = tmp_path / "there.csv"
    names = [*late.names[:8], *late.newcomers.names]
    lines = "".join(f"1,{name}\n" for name in names)
    trace.write_text("round,user\n" + lines, encoding="utf-8-sig")  # as Excel writes it
    cohorts = Cohorts.of(late, 0, Participation.of(f"0.5:trace={trace}"))
    assert [int(cohorts(t).sum()) for t in (1, 2, 3)] == [4, 4, 4]
    assert not any(cohorts(t)[8:].any() for t in range(1, 20))


@pytest.mark.parametrize("mask", [list, np.array, torch.tensor])
def test_a_function_may_give_a_truth_value_for_each_user(mask):
    """Known mistake: a mask was read as the places 0 and 1."""
    there = [False, False, True, False, True, True]
    cohorts = Cohorts.of(users(), 0, Participation(), lambda t: mask(there))
    assert cohorts(1).tolist() == there
    wrong = Cohorts.of(users(), 0, Participation(), lambda t: mask(there[:4]))
    with pytest.raises(UcflError, match="or a truth value for each of the 6 users"):
        wrong(1)


def test_who_is_late_when_flhc_clusters_is_in_a_stream_that_counts():
    """Known mistake: its label was -1, and times on air were those of other streams."""
    fed, algorithm = make_federation(users()), find("fl-hc:after=0")
    here = torch.tensor([True, True, False, True, True, True])
    state = algorithm.round(fed.among(here), algorithm.start(fed), 1)
    labels = state["labels"]
    assert labels.unique().tolist() == list(range(len(labels.unique())))
    assert (labels == labels[2]).sum() == 1
    assert algorithm.audience(state).models == len(labels.unique())
