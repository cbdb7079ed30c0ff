"""The adaptive method on small federations with a known answer."""

import pytest
import torch

import ucfl
from conftest import make_federation, make_users
from ucfl.algorithms import find
from ucfl.algorithms.adaptive_user_centric import CALIBRATIONS
from ucfl.collaboration.candidates import NAMES
from ucfl.errors import UcflError

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")


def after(name, fed, rounds):
    algorithm = find(name)
    state, traffic = algorithm.start(fed), []
    for t in range(1, rounds + 1):
        state = algorithm.round(fed, state, t)
        traffic.append(algorithm.traffic(fed, state))
    return state, traffic


def opposite_groups(held=40):
    """Two groups with opposite labels: one model serves neither."""
    users = make_users([60] * 6, classes=2, groups=[0, 0, 0, 1, 1, 1], held=held)
    for split in ("train", "validation", "test"):
        users.split(split).labels[3:] = 1 - users.split(split).labels[3:]
    return users


def test_it_never_chooses_fedavg_where_groups_contradict_each_other():
    state, _ = after("adaptive-user-centric", make_federation(opposite_groups()), 6)
    assert NAMES[int(state["choices"][0])] != "fedavg"
    weights = find("adaptive-user-centric")._mixing(
        make_federation(opposite_groups()), state, state["choices"]
    )
    rows = weights.streams[weights.labels]
    assert float(rows[:3, 3:].sum() + rows[3:, :3].sum()) < 0.05


def test_it_chooses_broad_mixing_where_users_are_alike_and_poor():
    users = make_users([8] * 10, held=100)
    state, _ = after("adaptive-user-centric", make_federation(users), 6)
    mixing = find("adaptive-user-centric")._mixing(make_federation(users), state, state["choices"])
    assert float(mixing.streams[mixing.labels].diagonal().mean()) < 0.3


def test_calibrations_cost_every_local_model_and_stop_when_the_choice_is_stable():
    fed = make_federation(opposite_groups())
    state, traffic = after("adaptive-user-centric", fed, 30)
    tried = [t for t, one in enumerate(traffic, 1) if one.work > 1]
    assert tried == list(CALIBRATIONS[: len(tried)])
    assert 3 <= len(tried) < len(CALIBRATIONS)
    assert state["stable"] == 3
    for t in tried:
        assert traffic[t - 1].down == fed.m
        assert traffic[t - 1].work == pytest.approx(1 + 9 * 40 / 60 / 3)
    assert traffic[-1].down <= fed.m


def test_everyone_may_choose_for_itself():
    fed = make_federation(opposite_groups())
    state, _ = after("adaptive-user-centric:choice=own", fed, 6)
    assert not {NAMES[number] for number in state["choices"].tolist()} & {"fedavg", "h=32"}
    weights = find("adaptive-user-centric")._mixing(fed, state, state["choices"]).weights
    assert float(weights[:3, 3:].sum() + weights[3:, :3].sum()) < 0.05


def test_a_few_voters_cost_less_and_are_the_same_every_time():
    fed = make_federation(opposite_groups())
    (first, traffic), (second, _) = (
        after("adaptive-user-centric:voters=0.5", fed, 4) for _ in range(2)
    )
    assert torch.equal(first["theta"], second["theta"])
    assert traffic[2].work == pytest.approx(1 + 0.5 * 9 * 40 / 60 / 3)


def test_without_validation_data_it_stays_with_its_first_choice():
    users = make_users([20] * 4, held=0)
    state, _ = after("adaptive-user-centric", make_federation(users), 4)
    assert {NAMES[number] for number in state["choices"].tolist()} == {"h=4"}


def test_bad_options_are_one_sentence(tmp_path):
    scenario = ucfl.Scenario(users=4, rounds=1, model="logistic")
    with pytest.raises(UcflError, match="share of the users"):
        ucfl.run(scenario, "adaptive-user-centric:voters=0", out=tmp_path / "r")
    with pytest.raises(UcflError, match="choice"):
        find("adaptive-user-centric:choice=mine")
