"""The adaptive method on small federations with a known answer."""

import pytest
import torch

import ucfl
from conftest import close, make_federation, make_users
from ucfl.algorithms import adaptive_user_centric, find
from ucfl.algorithms.adaptive_user_centric import CALIBRATIONS, AdaptiveUserCentric
from ucfl.collaboration import Mixing
from ucfl.collaboration.candidates import NAMES
from ucfl.errors import UcflError
from ucfl.federation import Federation
from ucfl.report.collaboration import collaboration
from ucfl.runs.planning import Question

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
        users.split(split).targets[3:] = 1 - users.split(split).targets[3:]
    return users


def test_it_never_chooses_fedavg_where_groups_contradict_each_other():
    state, _ = after("adaptive-user-centric", make_federation(opposite_groups()), 6)
    assert NAMES[int(state["choices"][0])] != "fedavg"
    rows = AdaptiveUserCentric.mixing(state).weights
    assert float(rows[:3, 3:].sum() + rows[3:, :3].sum()) < 0.05


def test_it_chooses_broad_mixing_where_users_are_alike_and_poor():
    users = make_users([8] * 10, held=100)
    state, _ = after("adaptive-user-centric", make_federation(users), 6)
    assert float(AdaptiveUserCentric.mixing(state).weights.diagonal().mean()) < 0.3


def test_calibrations_cost_every_local_model_and_stop_when_the_choice_is_stable():
    fed = make_federation(opposite_groups())
    state, traffic = after("adaptive-user-centric", fed, 30)
    watched = 40 / 56 / 3  # everyone's validation accuracy; 7 batches of 8 in 60 examples
    tried = [t for t, one in enumerate(traffic, 1) if one.work > 1 + 2 * watched]
    assert tried == list(CALIBRATIONS[: len(tried)])
    assert 3 <= len(tried) < len(CALIBRATIONS)
    assert state["stable"] == 3
    for t in tried:
        assert traffic[t - 1].down == fed.m
        # nine candidates, and the models of two streams
        assert traffic[t - 1].work == pytest.approx(1 + (9 + 2 + 1) * watched)
    assert traffic[-1].down <= fed.m


def test_a_user_in_the_wrong_stream_moves_to_the_one_that_serves_it():
    fed, algorithm = make_federation(opposite_groups()), find("adaptive-user-centric")
    state = algorithm.start(fed)
    assert state["streams"].tolist() == [0, 0, 0, 1, 1, 1]
    state["streams"] = torch.tensor([0, 0, 1, 1, 1, 1], device=fed.device)
    for t in range(1, 4):
        state = algorithm.round(fed, state, t)
    assert state["streams"].tolist() == [0, 0, 0, 1, 1, 1]
    assert state["stable"] == 0


def test_with_a_row_per_stream_calibrations_and_rounds_cost_less():
    fed = make_federation(opposite_groups())
    state, traffic = after("adaptive-user-centric:streams=plan", fed, 4)
    assert [one.down for one in traffic[:2]] == [2, 2]  # the plan's two streams
    _, grouped = after("adaptive-user-centric:streams=auto", fed, 2)
    assert [one.down for one in grouped] == [2, 2]
    alike = make_federation(make_users([60] * 6, classes=2, held=20))
    _, ungrouped = after("adaptive-user-centric:streams=auto", alike, 2)
    assert [one.down for one in ungrouped] == [6, 6]
    everything = make_federation(make_users([60] * 30, classes=2, held=20))
    _, dear = after("adaptive-user-centric", everything, 3)
    state, cheap = after("adaptive-user-centric:streams=plan", everything, 3)
    streams = int(state["streams"].max()) + 1
    assert dear[2].down == 30
    assert cheap[2].down <= 1 + 7 * streams


def test_everyone_may_choose_for_itself():
    fed = make_federation(opposite_groups())
    state, _ = after("adaptive-user-centric:choice=own", fed, 6)
    assert not {NAMES[number] for number in state["choices"].tolist()} & {"fedavg", "h=32"}
    weights = AdaptiveUserCentric.mixing(state).weights
    assert float(weights[:3, 3:].sum() + weights[3:, :3].sum()) < 0.05


def test_a_few_voters_cost_less_and_are_the_same_every_time():
    fed = make_federation(opposite_groups())
    (first, traffic), (second, _) = (
        after("adaptive-user-centric:voters=0.5", fed, 4) for _ in range(2)
    )
    assert torch.equal(first["theta"], second["theta"])
    assert traffic[2].work == pytest.approx(1 + (0.5 * (9 + 2) + 1) * 40 / 56 / 3)


def test_without_validation_data_it_stays_with_its_first_choice():
    users = make_users([20] * 4, held=0)
    state, _ = after("adaptive-user-centric", make_federation(users), 4)
    assert {NAMES[number] for number in state["choices"].tolist()} == {"h=4"}


def test_bad_options_are_one_sentence():
    with pytest.raises(UcflError, match=r"voters=0: .*greater than 0"):
        find("adaptive-user-centric:voters=0")
    with pytest.raises(UcflError, match=r"doubt=-1: .*greater than or equal to 0"):
        find("adaptive-user-centric:doubt=-1")
    with pytest.raises(UcflError, match="choice"):
        find("adaptive-user-centric:choice=mine")


@pytest.fixture
def impatient(monkeypatch):
    """Calibrated at once, and on trial after two rounds without a gain, for two rounds."""
    for name, value in {"CALIBRATIONS": (1,), "PATIENCE": 2, "TRIAL": 2}.items():
        monkeypatch.setattr(adaptive_user_centric, name, value)


def phases(accuracies, monkeypatch):
    """What becomes of a federation with these validation accuracies; states by round."""
    fed, algorithm = make_federation(opposite_groups()), find("adaptive-user-centric")
    told = iter(accuracies)
    monkeypatch.setattr(
        Federation, "metric", lambda fed, theta, split: torch.full((fed.m,), next(told))
    )
    states = [algorithm.start(fed)]
    for t in range(1, len(accuracies) + 1):
        states.append(algorithm.round(fed, states[-1], t))
    return fed, states


def test_when_nothing_is_gained_the_body_is_shared_on_trial_and_stays_if_that_gains(
    impatient, monkeypatch
):
    fed, states = phases([0.5, 0.6, 0.6, 0.6, 0.5, 0.7], monkeypatch)
    told = [state["phase"] for state in states[1:]]
    assert told == ["apart", "apart", "apart", "trial", "trial", "shared"]
    head = fed.part("head").mask
    assert 0 < int(head.sum()) < fed.rows.size
    theta = states[-1]["theta"]
    assert torch.equal(theta[:, ~head], theta[:1, ~head].expand(fed.m, -1))
    assert not close(theta[0, head], theta[-1, head])
    share = float((~head).double().mean())
    streams = len(states[-1]["rules"])
    traffic = find("adaptive-user-centric").traffic(fed, states[-1])
    assert traffic.down == pytest.approx(share + streams * (1 - share))
    assert traffic.up == 1
    audience = find("adaptive-user-centric").audience(states[-1])
    assert audience.fits(traffic.down)
    assert [part for part, _ in audience.parts] == pytest.approx([share, 1 - share])


def test_a_trial_that_gains_nothing_gives_the_best_models_back(impatient, monkeypatch):
    _, states = phases([0.5, 0.6, 0.6, 0.6, 0.5, 0.5], monkeypatch)
    assert [state["phase"] for state in states[-3:]] == ["trial", "trial", "settled"]
    for state in states[-3:]:  # during the trial, too
        assert torch.equal(find("adaptive-user-centric").models(state), states[2]["theta"])


def test_its_run_has_a_panel_and_a_plan(tmp_path):
    """Who learns from whom is asked of the algorithm: its class does not matter."""
    scenario = ucfl.Scenario(name="two", rounds=4, model="logistic", batch=8)
    run = ucfl.run(scenario, "adaptive-user-centric", users=opposite_groups(), out=tmp_path / "two")
    panel = collaboration(run.record)
    assert panel.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert panel.weights.shape == (6, 6)
    assert panel.own_shares() == pytest.approx([1.0, 1.0], abs=0.2)
    question = Question.from_runs(run.folder)
    assert question.plan("wired").recommended.streams == 2
    assert find("fedavg").collaboration({}) is None


def test_without_validation_data_nothing_is_tried_and_nothing_is_lost():
    """Known mistake: no round was the best, so a trial gave the untrained models back."""
    fed = make_federation(make_users([20] * 4, held=0))
    algorithm = find("adaptive-user-centric")
    states = [algorithm.start(fed)]
    for t in range(1, 13):
        states.append(algorithm.round(fed, states[-1], t))
        assert states[-1]["phase"] == "apart"
        assert not torch.equal(algorithm.models(states[-1]), fed.initial())


def test_candidates_cost_as_much_without_an_absent_user():
    """Known mistake: with one user absent, only the mixtures in use were counted."""
    algorithm, down = find("adaptive-user-centric:streams=plan"), []
    users = make_users([60] * 30, classes=2, held=20)
    for absent in (0, 1):
        fed = make_federation(users)
        state = algorithm.start(fed)
        for t in (1, 2):
            state = algorithm.round(fed, state, t)
        here = torch.arange(fed.m, device=fed.device) >= absent
        among = fed.among(here if absent else None)
        down.append(algorithm.traffic(among, algorithm.round(among, state, 3)).down)
    assert down[1] >= down[0] - 1 > 2


def test_nobody_moves_to_a_stream_whose_users_are_all_absent():
    """Known mistake: a model of zeros stood for theirs, and was better than a bad one."""
    fed, algorithm = make_federation(opposite_groups()), find("adaptive-user-centric")
    here = torch.tensor([True, True, True, False, False, False], device=fed.device)
    among, theta = fed.among(here), fed.initial()
    local = among.train(theta, 3)
    streams = Mixing.within(fed.sizes, torch.tensor([0, 0, 0, 1, 1, 1], device=fed.device))
    ways = [row.expand(fed.m, -1) for row in streams.streams]
    losses = algorithm._tried(among, local, ways, 3)
    assert losses[0, :3, :40].isfinite().all()
    assert losses[1, :3, :40].isinf().all()
    assert losses[:, 3:].isnan().all()
