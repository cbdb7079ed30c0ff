"""A model that is no longer finite: its user is named and absent from then on, nobody else suffers.

The table of all algorithms: user 2 of six diverges in round 2, because its local training returns
NaN from then on, and everyone else must have what a run gives in which it is absent from round 2.
"""

import numpy as np
import pytest
import torch

import ucfl
from conftest import close, make_federation, make_users, model_for
from ucfl.algorithms import REGISTRY, find
from ucfl.collaboration import Mixing
from ucfl.errors import Diverged, UcflError
from ucfl.federation import federation
from ucfl.runs.starting import train
from ucfl.users import Scenario, Users

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are alike
LOST, FROM, ROUNDS = 2, 2, 4
SIZES, GROUPS = [20, 8, 16, 33, 13, 24], [0, 0, 0, 1, 1, 1]
SCENARIO = Scenario(name="six", users=6, rounds=ROUNDS, lr=0.05, batch=8)


class Poisoned:
    """An executor whose loops return NaN for one user's rows, once told to."""

    def __init__(self, executor, lost):
        self.executor, self.lost, self.now = executor, lost, False

    def __getattr__(self, name):
        return getattr(self.executor, name)

    def iterate(self, step, state, batches, *args, **kwargs):
        results = self.executor.iterate(step, state, batches, *args, **kwargs)
        if not self.now:
            return results
        mine = batches.each[0] == self.lost  # the rows of the users, absent ones left out
        return tuple(
            torch.where(mine.view(-1, *[1] * (r.dim() - 1)), torch.nan, r) if r.numel() else r
            for r in results
        )


@pytest.fixture
def poison(monkeypatch):
    """Federations that are made have executors that can be poisoned, all at once."""
    made, choose = [], federation.choose

    def chosen(**options):
        made.append(Poisoned(choose(**options), LOST))
        return made[-1]

    def now(yes=True):
        for executor in made:
            executor.now = yes

    monkeypatch.setattr(federation, "choose", chosen)
    return now


def trained(algorithm, fed, users, out, *, rounds=ROUNDS, on_round=None, **options):
    said = []
    scenario = SCENARIO.change({"rounds": rounds})
    run = train(
        scenario,
        algorithm,
        fed,
        users,
        out=out,
        on_note=said.append,
        on_round=on_round,
        **options,
    )
    return run, said


def rows(algorithm, state):
    return algorithm.models(state)


@pytest.mark.parametrize("name", REGISTRY)
def test_others_have_what_they_would_have_without_it(name, poison, tmp_path):
    users, algorithm = make_users(SIZES, groups=GROUPS), find(name)
    fed = make_federation(users, model_for(name))

    def after(progress):
        if progress.round == FROM - 1:
            poison()

    run, said = trained(algorithm, fed, users, tmp_path / "r", on_round=after)
    assert run.dropped == {LOST: FROM}
    name_of = users.names[LOST]
    assert any(f"diverged in round {FROM}" in text and name_of in text for text in said)
    assert "1 of 6 users diverged" in said[-1]

    poison(False)
    present = torch.arange(6, device=fed.device) != LOST
    state = algorithm.start(fed)
    accuracies = [algorithm.metrics(fed, state)["accuracy"]]
    for t in range(1, ROUNDS + 1):
        here = fed.among(present) if t >= FROM else fed
        state = algorithm.round(here, state, t)
        accuracies.append(algorithm.metrics(here, state)["accuracy"])
    stored = run.per_user("test_accuracy")
    expected = torch.stack(accuracies).cpu().float().numpy().astype(np.float64)
    assert np.isnan(stored[FROM:, LOST]).all()
    expected[FROM:, LOST] = np.nan
    assert np.array_equal(stored, expected, equal_nan=True)
    ours, theirs = (algorithm.models(s) for s in (run.checkpoint.state, state))
    others = present.cpu()
    assert torch.equal(ours[others], theirs.cpu()[others])
    assert ours[others].isfinite().all()


#: Methods in which a user that is absent from the first round on might as well not exist. (Others
#: plan with it before training, and SCAFFOLD's variates of absent users count, as published.)
WITHOUT_A_TRACE = [
    name
    for name in REGISTRY
    if name not in ("scaffold", "adaptive-user-centric", "parallel-user-centric")
]


@pytest.mark.parametrize("name", WITHOUT_A_TRACE)
def test_absent_from_the_first_round_is_a_federation_of_the_others(name):
    users, algorithm = make_users(SIZES, groups=GROUPS), find(name)
    five = [user for user in range(6) if user != LOST]
    model = model_for(name)
    fed, fewer = make_federation(users, model), make_federation(users.select(five), model)
    present = torch.arange(6, device=fed.device) != LOST
    state, reference = algorithm.start(fed), algorithm.start(fewer)
    for t in range(1, ROUNDS + 1):
        state = algorithm.round(fed.among(present), state, t)
        reference = algorithm.round(fewer, reference, t)
    mine = algorithm.metrics(fed, state)["accuracy"][present]
    assert close(mine, algorithm.metrics(fewer, reference)["accuracy"], atol=1e-12)
    if name != "fedem":  # its rows hold everyone's shares
        assert close(rows(algorithm, state)[present], rows(algorithm, reference), atol=1e-9)


def with_a_wild_user(at=LOST):
    """Six users, one of whom has inputs that no learning rate is small enough for."""
    rng = np.random.default_rng(0)
    pairs = []
    for user in range(6):
        labels = rng.integers(0, 3, 24)
        inputs = rng.normal(size=(24, 6)) + 3 * np.eye(3, 6)[labels]
        pairs.append((inputs * (1e18 if user == at else 1), labels))
    held = [(x[:8], y[:8]) for x, y in pairs]
    return Users.from_arrays(pairs, held, held, classes=3, groups=GROUPS)


@pytest.mark.parametrize("name", ["fedavg", "oracle", "fl-hc", "ditto", "local"])
def test_a_user_whose_data_diverge_costs_nobody_else_anything(name, tmp_path):
    users = with_a_wild_user()
    scenario = Scenario(name="wild", model="mlp", lr=0.05, batch=8, rounds=6)
    run = ucfl.run(scenario, name, users=users, out=tmp_path / "r")
    assert set(run.dropped) == {LOST}
    test = run.per_user("test_accuracy")
    assert np.isnan(test[-1, LOST])
    others = np.arange(6) != LOST
    assert (test[-1, others] > 0.8).all()
    assert run.summary["worst"]["final"] > 80


def test_when_everyone_diverges_the_run_ends_with_a_sentence(tmp_path):
    users = make_users(SIZES)
    scenario = Scenario(name="fast", model="mlp", lr=1e30, batch=8, rounds=3)
    with pytest.raises(Diverged, match=r"diverged in round .* lower the learning rate"):
        ucfl.run(scenario, "fedavg", users=users, out=tmp_path / "r")


def test_stop_keeps_the_rounds_before_and_drop_goes_on_from_there(poison, tmp_path):
    users, algorithm = make_users(SIZES, groups=GROUPS), find("fedavg")
    fed = make_federation(users)

    def after(progress):
        if progress.round == 2:
            poison()

    with pytest.raises(Diverged, match=f"user {users.names[LOST]};"):
        trained(algorithm, fed, users, tmp_path / "r", on_divergence="stop", on_round=after)
    assert ucfl.runs.Run.open(tmp_path / "r").checkpoint.round == 2
    stopped, _ = trained(algorithm, fed, users, tmp_path / "r", resume=True)
    poison(False)
    whole, _ = trained(algorithm, fed, users, tmp_path / "whole", on_round=after)
    assert stopped.dropped == whole.dropped == {LOST: 3}
    assert stopped.history.equals(whole.history)


def test_dropped_users_stay_dropped_after_a_resume(poison, tmp_path):
    users, algorithm = make_users(SIZES, groups=GROUPS), find("fedavg")
    fed = make_federation(users)

    def after(progress):
        if progress.round == 1:
            poison()
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(ucfl.runs.Stopped):
        trained(algorithm, fed, users, tmp_path / "r", on_round=after, rounds=6)
    poison(False)  # it would be finite again
    resumed, _ = trained(algorithm, fed, users, tmp_path / "r", resume=True, rounds=6)
    assert resumed.dropped == {LOST: 2}
    assert np.isnan(resumed.per_user("test_accuracy")[2:, LOST]).all()


# -- the pieces --------------------------------------------------------------------------------


def test_a_weight_of_zero_is_not_multiplied():
    theta = torch.tensor([[1.0, 2], [3, 4], [torch.nan, torch.inf]])
    weights = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 0.5, 0.5]])
    mixed = Mixing(weights, torch.arange(3)) @ theta
    assert torch.equal(mixed[:2], torch.tensor([[2.0, 3], [1, 2]]))
    assert not mixed[2].isfinite().any()


def test_among_leaves_columns_out_and_renormalises():
    weights = torch.tensor([[0.5, 0.25, 0.25], [0, 0, 1.0]], dtype=torch.float64)
    mixing = Mixing(weights, torch.tensor([0, 0, 1])).among(torch.tensor([True, True, False]))
    theta = torch.tensor([[3.0], [6], [torch.nan]], dtype=torch.float64)
    mixed = mixing @ theta
    assert torch.allclose(mixed[:2], torch.tensor([[4.0], [4]], dtype=torch.float64))
    assert mixed[2].isnan()  # a stream of absent users alone: who listens keeps its row
    assert mixing.among(None) is mixing


def test_no_number_is_no_class():
    users = make_users([8, 8], classes=3)
    fed = make_federation(users)
    theta = fed.initial().clone()
    theta[1] = torch.nan
    accuracy = fed.metric(theta)
    assert accuracy[0] >= 0
    assert accuracy[1].isnan()


def test_training_tells_who_diverged():
    users = make_users([8, 16, 24])  # one, two and three steps: the first step is finite
    fed = make_federation(users, lr=1e200)
    with pytest.raises(Diverged) as caught:
        fed.train(fed.initial(), 7)
    assert caught.value.users == (1, 2)
    assert caught.value.round == 7
    assert isinstance(caught.value, UcflError)


def test_a_gradient_that_is_not_finite_is_told_before_the_first_round():
    users = with_a_wild_user()
    fed = make_federation(users, double=False)
    wild = fed.initial() * 1e30
    with pytest.raises(Diverged, match="before the first round"):
        fed.collaboration_round(wild)
