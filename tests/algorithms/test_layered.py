"""Layered user-centric learning: what it reduces to, what it decides, what it sends."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import ucfl
from algorithms.loops import after
from conftest import close, make_federation, make_users
from ucfl.algorithms import find
from ucfl.algorithms.sampled import feature_length, noised
from ucfl.collaboration import Mixing
from ucfl.collaboration.priors import log_priors
from ucfl.errors import UcflError
from ucfl.federation import Pull
from ucfl.runs import federation
from ucfl.users import SCENARIOS, Users

ROTATED = SCENARIOS["rotated-mnist"].change({"rounds": 2, "batch": 32})
PERMUTED = ROTATED.change({"name": "permuted", "rotations": (), "permute_labels": True})
LABELS = ROTATED.change(
    {"name": "labels", "rotations": (), "groups": 1, "split": "dirichlet", "alpha": 0.3}
)
SHIFTED = PERMUTED.change({"split": "dirichlet", "alpha": 0.5})


def started(scenario, name="layered-user-centric", seed=0):
    fed, algorithm = federation(scenario, seed), find(name)
    return fed, algorithm, algorithm.start(fed)


def test_told_the_groups_and_nothing_else_it_is_the_oracle():
    fed = make_federation(make_users([20, 7, 13, 9], groups=[0, 0, 1, 1]))
    name = "layered-user-centric:groups=told:body=groups:prior=false:personal_model=never"
    assert torch.equal(after(name, fed, 3)[1]["theta"], after("oracle", fed, 3)[1]["theta"])


def test_with_a_model_of_everyones_own_and_no_groups_it_is_ditto():
    fed = make_federation(make_users([20, 7, 13]))
    name = "layered-user-centric:prior=false:personal_model=always"
    ours, dittos = after(name, fed, 3), after("ditto", fed, 3)
    assert torch.equal(ours[0].models(ours[1]), dittos[0].models(dittos[1]))


def test_users_alike_are_fedavg_to_the_bit():
    fed, algorithm, state = started(SCENARIOS["rotated-mnist"].change(
        {"rotations": (), "groups": 1, "batch": 32}))  # fmt: skip
    assert not state["prior"].any()
    mine, theirs = algorithm.round(fed, state, 1), find("fedavg").start(fed)
    assert torch.equal(mine["theta"], find("fedavg").round(fed, theirs, 1)["theta"])


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize(
    ("scenario", "groups", "bodies", "prior"),
    [(ROTATED, 4, 4, False), (PERMUTED, 4, 1, False), (LABELS, 1, 1, True), (SHIFTED, 4, 1, True)],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_what_prototypes_decide(scenario, groups, bodies, prior, seed):
    fed, algorithm, state = started(scenario, seed=seed)
    assert len(state["groups"].unique()) == groups
    assert len(state["inputs"].unique()) == bodies
    assert bool(state["prior"].any()) == prior
    assert "personal" not in state
    if fed.groups is not None:
        assert adjusted_rand_score(fed.groups, state["groups"]) == 1
    share, traffic = fed.part("head").share, algorithm.traffic(fed, state)
    assert traffic.down == pytest.approx(bodies * (1 - share) + groups * share)
    assert (traffic.up, traffic.work) == (1, 1)


def test_users_who_differ_by_degrees_have_models_of_their_own():
    """Each has its own offset of all inputs: no groups, and far more than noise."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(3, 12))

    def pair(offset):
        y = rng.integers(0, 3, 60)
        return patterns[y] + 2 * offset + 0.3 * rng.normal(size=(60, 12)), y

    users = Users.from_arrays([pair(rng.normal(size=12)) for _ in range(12)], classes=3)
    fed, algorithm = make_federation(users), find("layered-user-centric")
    state = algorithm.start(fed)
    assert len(state["groups"].unique()) == 1
    assert state["spread"] > 1
    assert algorithm.traffic(fed, state).work == 2
    assert "a model of its own" in algorithm.describe(state)
    away = torch.tensor([True] * 11 + [False])
    after = algorithm.round(fed.among(away), state, 1)
    assert torch.equal(after["personal"][11], state["personal"][11])
    assert not torch.equal(after["personal"][0], state["personal"][0])


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_rounds_are_those_of_a_loop_by_hand():
    """Bodies over everyone, heads in the groups, and a bias that keeps everyone's prior."""
    fed, algorithm, state = started(SHIFTED, "layered-user-centric:renamed=false", seed=3)
    prior, groups = state["prior"], state["groups"]
    bias = slice(fed.rows.size - 10, fed.rows.size)
    head = fed.part("head").mask
    theta = fed.initial().clone()
    theta[:, bias] += prior
    assert torch.equal(theta, state["theta"])
    for t in (1, 2):
        state = algorithm.round(fed, state, t)
        local = fed.train(theta, t)
        local[:, bias] -= prior
        theta = torch.empty_like(local)
        sizes = fed.sizes.double()
        for user in range(fed.m):
            inside = (groups == groups[user]) * sizes
            theta[user, ~head] = ((sizes / sizes.sum()).float() @ local)[~head]
            theta[user, head] = ((inside / inside.sum()).float() @ local)[head]
        theta[:, bias] += prior
        assert close(state["theta"], theta, atol=1e-5)


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_equal_classes_start_with_equal_weights_whatever_they_are_called():
    """Users of two groups with the same images: their first models say the same of them."""
    images = ucfl.Scenario(users=1, points=1000, held_out=0.1).build(0).train
    rng = np.random.default_rng(0)
    order = np.array([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    x, y = images.inputs[0].numpy(), images.targets[0].numpy()
    dealt = np.array_split(rng.permutation(len(y)), 12)
    pairs = [(x[part], order[y[part]] if i % 2 else y[part]) for i, part in enumerate(dealt)]
    users = Users.from_arrays(pairs, classes=10, groups=[i % 2 for i in range(12)])
    fed, algorithm = make_federation(users, "lenet5"), find("layered-user-centric:prior=false")
    state = algorithm.start(fed)
    assert adjusted_rand_score(fed.groups, state["groups"]) == 1
    outputs = [
        fed.module(state["theta"][user])(users.train.inputs[0, :9].double() / 255)
        for user in (0, 1)
    ]
    assert torch.allclose(outputs[0], outputs[1][:, order], atol=1e-12)


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_the_collaboration_round_costs_prototypes_and_not_a_model():
    fed, algorithm, state = started(SHIFTED, seed=3)
    start = algorithm.start_traffic(fed, state)
    assert start.up * fed.rows.size == pytest.approx(4 * 10 * (84 + 2))
    assert start.down == pytest.approx(1 + 4 * 11 / fed.rows.size)
    assert start.work == pytest.approx(4 / 3, rel=0.2)  # the last batch is dropped in training


def test_a_server_that_knows_the_seed_cannot_take_a_deployed_users_noise_off():
    """Known mistake: the noise of a user's own machine was that of the seed, which all know."""
    fed = make_federation(make_users([40] * 3))
    deployed = fed.among(None)
    deployed.server = lambda rows: rows
    length = feature_length(fed, fed.initial()[0])
    clean = fed.prototypes(fed.initial(), length)
    known, sent, again = (noised(clean, each, 2.0, length) for each in (fed, deployed, deployed))
    assert not torch.equal(sent.counts, known.counts)
    assert not torch.isclose(sent.means, known.means).all()
    assert torch.equal(sent.means, again.means)  # asked twice, nothing more is told


@pytest.mark.parametrize("form", ["sketch=24", "noise=0.5", "noise=0.5:sketch=40"])
@pytest.mark.parametrize("seed", [3, 4])
def test_sketched_and_noised_prototypes_find_the_groups_too(form, seed):
    fed, _, state = started(ROTATED, f"layered-user-centric:{form}", seed)
    assert adjusted_rand_score(fed.groups, state["groups"]) == 1
    sent = 10 * (40 + 2) if "40" in form else 10 * (24 + 2) if "24" in form else 10 * (84 + 2)
    assert state["sent"] == 4 * sent


def test_noise_is_as_large_as_it_says_and_the_same_again():
    fed = make_federation(make_users([400] * 30))
    length = feature_length(fed, fed.initial()[0])
    clean = fed.prototypes(fed.initial(), length)
    one, again = (noised(clean, fed, 2.0, length) for _ in range(2))
    assert torch.equal(one.means, again.means)
    sums = (one.means * one.counts[..., None] - clean.means * clean.counts[..., None]) / length
    assert float(sums.std()) == pytest.approx(2.0, rel=0.1)
    assert float((one.counts - clean.counts).std()) == pytest.approx(2.0, rel=0.25)


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_a_newcomer_gets_its_groups_model_with_its_own_prior():
    users = SHIFTED.build(3)
    keep = [i for i in range(20) if i % 5]
    fed, algorithm = federation(SHIFTED, 3, users=users.select(keep)), find("layered-user-centric")
    state = algorithm.start(fed)
    state = algorithm.round(fed, state, 1)
    late = fed.of(users.select([0, 5, 10, 15]))
    found = algorithm.newcomers(fed, state, late)
    bias = fed.rows.size - 10
    for row, group in zip(found, late.groups, strict=True):
        member = int(torch.nonzero(fed.groups == group)[0, 0])
        assert torch.equal(row[:bias], state["theta"][member, :bias])
        assert not torch.equal(row[bias:], state["theta"][member, bias:])


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
@pytest.mark.parametrize(
    "objective", [ucfl.Objective(lambda out, y: torch.nn.functional.cross_entropy(
        out, y, reduction="none"), {}, "mine", "classes")])  # fmt: skip
def test_nothing_is_added_to_outputs_whose_meaning_is_not_known(objective):
    users = LABELS.build(0)
    fed = federation(LABELS, 0, users=users)
    own = type(fed)(users, fed.module(fed.initial()[0]), objective=objective)
    assert "prior" not in find("layered-user-centric").start(own)


def test_mistakes_are_told():
    fed = make_federation(make_users([9, 9]))
    with pytest.raises(UcflError, match="groups=told needs"):
        find("layered-user-centric:groups=told").check(fed)
    with pytest.raises(UcflError, match="no shorter than the 64 features"):
        find("layered-user-centric:sketch=64").start(fed)
    with pytest.raises(UcflError, match="a sketch is one of gradients"):
        find("user-centric:likeness=prototypes:sketch=10").check(fed)


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
@pytest.mark.parametrize("seed", [3, 4])
def test_the_papers_method_with_prototypes_sees_groups_that_gradients_do_not(seed):
    """Permuted labels under label shift: prototypes are blind to which labels users have."""
    fed, _, state = started(SHIFTED, "user-centric:likeness=prototypes:streams=auto", seed)
    assert adjusted_rand_score(fed.groups, state["labels"]) == 1
    gradients = started(SHIFTED, "user-centric:streams=auto", seed)[2]
    assert adjusted_rand_score(fed.groups, gradients["labels"]) < 0.5
    assert state["sent"] == 4 * 10 * 86


def test_the_pull_of_a_personal_model_is_towards_what_its_user_received():
    fed = make_federation(make_users([20, 7, 13]))
    name = "layered-user-centric:personal_model=always:prior=false:strength=0.7"
    _, state = after(name, fed, 1)
    theta = fed.initial()
    assert torch.equal(state["personal"], fed.train(theta, 1, Pull(0.7, towards=theta)))
    assert close(state["theta"], Mixing.average(fed.sizes) @ fed.train(theta, 1), atol=1e-12)


def test_a_newcomer_with_one_example_a_class_is_in_the_users_units():
    """Groups that differ by contrast: by its own variances alone it would look like either."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(4, 12))

    def pair(group, n):
        y = np.arange(n) % 4
        return (1 + group) * patterns[y] + 0.3 * rng.normal(size=(n, 12)), y

    held = [pair(0, 4)] * 12
    users = Users.from_arrays([pair(i % 2, 40) for i in range(12)], held, held, classes=4)
    late = Users.from_arrays([pair(i % 2, 4) for i in range(6)], held[:6], held[:6], classes=4)
    for name in ("layered-user-centric", "user-centric:likeness=prototypes:streams=2"):
        fed, algorithm = make_federation(users), find(name)
        state = algorithm.start(fed)
        state = {**state, "theta": state["theta"] + torch.arange(12.0)[:, None] % 2}
        found = algorithm.newcomers(fed, state, fed.of(late))[:, 0] - fed.initial()[0, 0]
        assert [round(float(each)) for each in found] == [0, 1] * 3, name


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_without_groups_priors_and_spread_are_everyones():
    fed, algorithm, state = started(SHIFTED, "layered-user-centric:body=all:head=all", 3)
    counts = fed.users.label_counts().double().numpy()
    everyone = log_priors(counts, np.zeros(20, np.int64))
    assert np.allclose(state["prior"].numpy(), everyone, atol=1e-5)
    assert state["spread"] > 1  # of users in four groups that nobody tells apart
    assert len(state["groups"].unique()) == 1
    assert algorithm.describe(state).startswith("Users have no groups")


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_states_of_before_have_their_traffic():
    fed, algorithm, state = started(ROTATED, "user-centric")
    old = {key: value for key, value in state.items() if key != "sent"}
    assert algorithm.start_traffic(fed, old) == algorithm.start_traffic(fed, state)


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_weight_decay_leaves_priors_alone(decay):
    """A step of zero gradient but for the decay: the common part decays, the prior does not."""
    fed, algorithm, state = started(LABELS.change({"weight_decay": decay}), seed=3)
    pull = algorithm._undecayed(fed, state)
    if not decay:
        assert pull.direction is None
        return
    bias = slice(fed.rows.size - 10, fed.rows.size)
    decayed = decay * state["theta"][:, bias] + pull.direction[:, bias]
    assert close(decayed, decay * fed.initial()[:, bias], atol=1e-6)
    assert not pull.direction[:, : fed.rows.size - 10].any()


class Turned(torch.nn.Module):
    """Its outputs are not its last layer's: they come in another order, and scaled."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(10))  # no bias of the outputs
        self.first, self.last = torch.nn.Linear(784, 10), torch.nn.Linear(10, 10)

    def forward(self, x):
        return 2 * self.last(self.first(x.flatten(1)).relu() + self.bias).flip(1)


@pytest.mark.filterwarnings("ignore::ucfl.UcflWarning")
def test_a_prior_goes_only_where_it_shifts_the_outputs():
    users = SHIFTED.build(3)
    plain = federation(SHIFTED, 3, users=users)
    fed = type(plain)(users, Turned(), training=plain.training)
    state = find("layered-user-centric").start(fed)
    assert "prior" not in state
    assert torch.equal(state["theta"], fed.initial())  # nor are outputs renamed


def test_noise_is_refused_where_an_examples_part_is_not_known():
    rng = np.random.default_rng(0)
    users = Users.from_arrays([(rng.normal(size=(20, 3)), rng.normal(size=20))] * 2)
    net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    fed = ucfl.Federation(users, net, objective=ucfl.federation.objective("regression"))
    find("layered-user-centric").check(fed)
    with pytest.raises(UcflError, match="noise= is for classes"):
        find("layered-user-centric:noise=1").check(fed)
