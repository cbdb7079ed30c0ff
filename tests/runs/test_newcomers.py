"""Newcomers: users that training never sees, served when it is over."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import ucfl
from conftest import close, make_federation, make_users, model_for
from ucfl.algorithms import REGISTRY, find
from ucfl.collaboration import collaboration_weights, distances_between, newcomer_weights
from ucfl.errors import UcflError
from ucfl.runs.arrivals import welcome
from ucfl.runs.compare import Comparison
from ucfl.users import Scenario, Users, with_newcomers

SCENARIO = Scenario(name="late", model="mlp", batch=8, lr=0.05, rounds=3, newcomers=0.4)
CANNOT = {"local", "fedfomo", "fedem", "fedmoe", "adaptive-user-centric", "fedamp", "pfedgraph"}


def two_groups(sizes=(30, 24, 40, 16, 32, 20), permuted=True):
    """Blobs whose classes are swapped in every other user."""
    rng = np.random.default_rng(5)

    def pair(n, group):
        y = rng.integers(0, 2, n)
        x = rng.normal(size=(n, 6)).astype(np.float32) + 3 * y[:, None].astype(np.float32)
        return x, (1 - y if group and permuted else y)

    splits = [[pair(n, i % 2) for i, n in enumerate(sizes)] for _ in range(3)]
    return Users.from_arrays(*splits, classes=2, groups=[i % 2 for i in range(len(sizes))])


def test_the_seed_says_who_comes_late_and_nobody_is_lost():
    users = make_users([9] * 10)
    one, again, other = (with_newcomers(users, 0.3, seed) for seed in (1, 1, 2))
    assert len(one) == 7
    assert one.newcomers.names == again.newcomers.names != other.newcomers.names
    assert {*one.names} | {*one.newcomers.names} == {*users.names}
    assert one.checksum() != replace(one, newcomers=None).checksum()
    assert repr(one).endswith(", 3 newcomers")
    assert with_newcomers(users, 0, 1) is users
    assert len(with_newcomers(users, 0.99, 1)) == 1
    assert len(with_newcomers(users, 0.001, 1).newcomers) == 1


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
@pytest.mark.parametrize("name", REGISTRY)
def test_training_never_sees_them_and_who_can_serves_them(name, tmp_path):
    """Their data is NaN while others train; nothing of anybody changes by their coming."""
    users = with_newcomers(two_groups(), 0.4, 0)
    scenario, notes = SCENARIO.change({"model": model_for(name)}), []
    run = ucfl.run(scenario, name, users=two_groups(), out=tmp_path / "with", on_note=notes.append)
    alone = ucfl.run(
        scenario.change({"newcomers": 0}),
        name,
        users=replace(users, newcomers=None),
        out=tmp_path / "without",
    )
    for key, value in alone.checkpoint.state.items():
        mine = run.checkpoint.state[key]
        assert torch.equal(mine, value) if isinstance(value, torch.Tensor) else mine == value
    assert run.history.equals(alone.history)
    if name in CANNOT:
        assert run.newcomers is None
        assert any("has no model for newcomers" in note for note in notes)
    else:
        assert {*run.newcomers} == {"before", "after"}
        assert {len(v) for v in run.checkpoint.newcomers.values()} == {2}
        assert all(v.isfinite().all() for v in run.checkpoint.newcomers.values())
    assert alone.newcomers is None


def served(name, users):
    fed = make_federation(users, model="mlp")
    algorithm = find(name)
    state = algorithm.start(fed)
    for t in range(1, 6):
        state = algorithm.round(fed, state, t)
    arrivals = fed.of(users.newcomers)
    return fed, algorithm, state, arrivals, algorithm.newcomers(fed, state, arrivals)


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
@pytest.mark.parametrize("name", ["user-centric:streams=2", "oracle", "cfl", "fl-hc"])
def test_newcomers_get_the_model_of_their_own_group(name):
    users = with_newcomers(two_groups((60, 48, 80, 44, 64, 52, 40, 44)), 0.3, 0)
    _, algorithm, state, arrivals, theta = served(name, users)
    for i, group in enumerate(users.newcomers.groups.tolist()):
        member = users.groups.tolist().index(group)
        assert close(theta[i], algorithm.models(state)[member]), i
    assert arrivals.metric(theta).min() > 0.9


def test_a_row_of_w_is_what_the_whole_matrix_would_give_but_for_itself():
    """Eq. 7 for all users at once, the newcomer among them, its own column taken out."""
    rng = np.random.default_rng(0)
    g, v, n = rng.normal(size=(7, 50)), rng.uniform(20, 60, 7), rng.integers(5, 50, 7)
    whole = collaboration_weights(g, v, n)
    expected = whole[6, :6] / whole[6, :6].sum()
    g, v, n = torch.tensor(g), torch.tensor(v), torch.tensor(n)
    apart = distances_between(g[6:], g[:6])
    assert close(apart, (g[6:] - g[:6]).square().sum(1)[None], rtol=1e-10)
    found = newcomer_weights(apart, v[6:], v[:6], n[:6])
    assert close(found[0], torch.tensor(expected), rtol=1e-9)


def test_a_newcomer_without_a_variance_learns_from_the_nearest():
    apart = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    found = newcomer_weights(apart, torch.tensor([0.0, 1.0]), torch.ones(3), torch.ones(3))
    assert found[0].tolist() == [0, 1, 0]
    assert found[1].min() > 0


def test_what_they_get_is_measured_before_and_after_local_training():
    users = with_newcomers(two_groups(), 0.4, 0)
    fed, algorithm, state, arrivals, theta = served("fedavg", users)
    found = welcome(algorithm, fed, state, users.newcomers, 6)
    assert close(found["before_accuracy"].double(), arrivals.metric(theta).cpu())
    after = arrivals.metric(arrivals.train(theta, 6)).cpu()
    assert close(found["after_accuracy"].double(), after)
    assert {*found} == {f"{w}_{m}" for w in ("before", "after") for m in fed.objective.measured}


def test_a_newcomer_that_diverges_has_no_metric_and_the_others_have():
    users = with_newcomers(two_groups(), 0.4, 0)
    inputs = users.newcomers.train.inputs.clone()
    inputs[0] = torch.inf
    late = replace(users.newcomers, train=replace(users.newcomers.train, inputs=inputs))
    fed, algorithm, state, _, _ = served("fedavg", users)
    found = welcome(algorithm, fed, state, late, 6)["after_accuracy"]
    assert found.isnan().tolist() == [True, False]


def test_a_run_that_goes_on_serves_them_at_its_new_end(tmp_path):
    first = ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "r")
    early = copy.deepcopy(first.newcomers)
    ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "r", rounds=8, resume=True)
    whole = ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "w", rounds=8)
    later = ucfl.Run.open(tmp_path / "r").newcomers
    assert later == whole.newcomers
    assert early is not None


def test_a_stop_before_they_came_is_made_up_for(tmp_path, monkeypatch):
    """The last round was stored without them: the next command with --resume serves them."""
    monkeypatch.setattr("ucfl.runs.loop.welcome", lambda *_: None)
    ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "r")
    monkeypatch.undo()
    assert ucfl.Run.open(tmp_path / "r").newcomers is None
    again = ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "r", resume=True)
    whole = ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "w")
    assert again.newcomers == whole.newcomers
    assert ucfl.Run.open(tmp_path / "r").newcomers == whole.newcomers


def test_a_run_that_a_callback_stops_serves_them(tmp_path):
    def stop(info):
        raise ucfl.StopRun

    run = ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "r", callbacks=[stop])
    whole = ucfl.run(SCENARIO, "fedavg", users=two_groups(), out=tmp_path / "w", rounds=1)
    assert run.newcomers == whole.newcomers


def test_comparisons_say_how_newcomers_fare(tmp_path):
    runs = {
        name: [ucfl.run(SCENARIO, name, users=two_groups(), out=tmp_path / name)]
        for name in ("fedavg", "local")
    }
    table = Comparison(SCENARIO, (0,), runs).to_json()["algorithms"]
    assert table["local"]["newcomers"] is None
    assert table["fedavg"]["newcomers"] == runs["fedavg"][0].newcomers


def test_what_cannot_be_is_one_sentence(tmp_path):
    for wrong in (1, -0.1, "many"):
        with pytest.raises(UcflError, match="newcomers"):
            SCENARIO.change({"newcomers": wrong})
    with pytest.raises(UcflError, match="one user alone"):
        with_newcomers(make_users([9]), 0.5, 0)
    others = replace(two_groups(), newcomers=make_users([9, 9]))
    with pytest.raises(UcflError, match="newcomers' input shape are"):
        ucfl.run(SCENARIO.change({"newcomers": 0}), "fedavg", users=others, out=tmp_path / "r")
    other_names = replace(two_groups(), class_names=("yes", "no"))
    with pytest.raises(UcflError, match="class names"):
        with_newcomers(replace(other_names, newcomers=two_groups()), 0, 0)
    brought = with_newcomers(two_groups(), 0.4, 0)
    with pytest.raises(UcflError, match="newcomers of their own"):
        ucfl.run(SCENARIO, "fedavg", users=brought, out=tmp_path / "r")


def test_a_kept_optimiser_state_does_not_keep_newcomers_out(tmp_path):
    """Known mistake: their training was refused after the last round, and the rounds were lost."""
    scenario = SCENARIO.change({"optimiser_state": "keep"})
    run = ucfl.run(scenario, "fedavg", out=tmp_path / "r", device="cpu")
    assert run.checkpoint.round == scenario.rounds
    assert run.newcomers is not None


def test_what_fails_after_the_last_round_loses_no_round(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("after the last round")

    monkeypatch.setattr("ucfl.runs.loop.welcome", broken)
    with pytest.raises(RuntimeError, match="after the last round"):
        ucfl.run(SCENARIO, "fedavg", out=tmp_path / "r", device="cpu")
    assert ucfl.Run.open(tmp_path / "r").checkpoint.round == SCENARIO.rounds


def test_newcomers_train_with_the_scenarios_rate_whatever_the_schedule(tmp_path):
    """Known mistake: a cosine had ended at 0, and after was before."""
    run = ucfl.run(
        SCENARIO.change({"schedule": "cosine"}), "fedavg", out=tmp_path / "r", device="cpu"
    )
    after, before = (run.checkpoint.newcomers[f"{when}_loss"] for when in ("after", "before"))
    assert ((after - before).abs() > 1e-3).all()
