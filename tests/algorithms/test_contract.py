"""What every algorithm promises. A new one joins by being registered.

Everything is in float64: what differs then is a mistake, not rounding.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import close, make_federation, make_users, model_for
from ucfl.algorithms import REGISTRY, find
from ucfl.execution import choice
from ucfl.federation import Federation
from ucfl.measure import ACCURACY
from ucfl.runs.checkpoint import Checkpoint
from ucfl.users import Users

# Small random users are alike, and some have a single example; both are warned of.
pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
every_algorithm = pytest.mark.parametrize("name", REGISTRY)
ROUNDS = 3


#: Hyper-parameters that switch off what a method adds, so that it must reduce to SGD and FedAvg.
#: Without an entry, a method reduces to them as it is; pFedMe, Per-FedAvg (whose steps have two
#: batches), the mixtures and methods that train parts of a model one after another never do. IFCA's
#: user may find another first model better than θ⁰.
NEUTRAL = {
    "fedprox": "fedprox:mu=0",
    "ditto": "ditto:strength=0",
    "fedavg-finetune": None,
    "fedbabu": None,
    "fedrep": None,
    "apfl": "apfl:alpha=0:alpha_lr=0",
    "pfedme": None,
    "fedem": None,
    "fedmoe": None,
    "per-fedavg": None,
    "fedamp": "fedamp:strength=0",
    "ifca": "ifca:clusters=1",
    "pfedgraph": "pfedgraph:strength=0",
}
reducible = pytest.mark.parametrize(
    "name", [NEUTRAL.get(name, name) for name in REGISTRY if NEUTRAL.get(name, name)]
)


def trained(name, fed, rounds=ROUNDS, state=None, first=1):
    algorithm = find(name)
    state = algorithm.start(fed) if state is None else state
    for t in range(first, rounds + 1):
        state = algorithm.round(fed, state, t)
    return algorithm, state


def models(name, fed, rounds=ROUNDS):
    algorithm, state = trained(name, fed, rounds)
    return algorithm.models(state)


@reducible
def test_one_user_is_plain_sgd(name):
    fed = make_federation(make_users([20], groups=[0]), model_for(name))
    training = find(name).training(fed)
    theta = fed.initial()
    for t in range(1, ROUNDS + 1):
        theta = fed.train(theta, t, training=training)
    assert close(models(name, fed), theta, atol=1e-12)


@reducible
def test_identical_users_give_fedavgs_answer(name):
    one = make_users([20], groups=[0])
    users = one.select([0, 0, 0, 0])  # the same data, and the same id: the same batches
    training = find(name).training(make_federation(one))
    fed = make_federation(users, model_for(name), **dataclasses.asdict(training))
    assert close(models(name, fed), models("fedavg", fed), atol=1e-10)


@every_algorithm
def test_identical_users_are_one_user(name):
    one = make_users([20], groups=[0])
    alone = models(name, make_federation(one, model_for(name)))
    together = models(name, make_federation(one.select([0, 0, 0, 0]), model_for(name)))
    assert close(together, alone.expand(4, -1), atol=1e-10)


@every_algorithm
def test_renaming_users_permutes_the_result(name, unequal_users):
    order = [3, 0, 4, 1, 2]
    before = models(name, make_federation(unequal_users, model_for(name)))
    after = models(name, make_federation(unequal_users.select(order), model_for(name)))
    assert close(after, before[order], atol=1e-10)


@every_algorithm
def test_chunks_and_the_plain_path_change_nothing(name, unequal_users):
    whole = models(name, make_federation(unequal_users, model_for(name), chunk=5))
    for path in ({"chunk": 1}, {"chunk": 2}, {"chunk": 3}, {"plain": True}):
        assert close(models(name, make_federation(unequal_users, model_for(name), **path)), whole)


@every_algorithm
def test_traced_steps_change_nothing(name, unequal_users, monkeypatch):
    eager = models(name, make_federation(unequal_users, model_for(name)))
    monkeypatch.setattr(choice, "WORTH_TRACING", 0)
    for chunk in (1, 3):
        assert close(
            models(name, make_federation(unequal_users, model_for(name), chunk=chunk)), eager
        )


@every_algorithm
def test_a_saved_state_goes_on_as_if_nothing_had_happened(name, unequal_users, tmp_path):
    fed = make_federation(unequal_users, model_for(name))
    _, state = trained(name, fed, rounds=1)
    history = {"test_accuracy": torch.zeros(2, fed.m)}
    Checkpoint(1, 0.5, state, history, torch.zeros(1, 3)).save(tmp_path / "c")
    loaded = Checkpoint.load(tmp_path / "c", fed.device)
    assert (loaded.round, loaded.seconds) == (1, 0.5)
    assert set(loaded.state) == set(state)
    algorithm, resumed = trained(name, fed, state=loaded.state, first=2)
    assert torch.equal(algorithm.models(resumed), models(name, fed))


@every_algorithm
def test_rounds_are_pure(name, unequal_users):
    fed = make_federation(unequal_users, model_for(name))
    algorithm, state = trained(name, fed, rounds=1)
    before = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}
    once, twice = (algorithm.round(fed, state, 2) for _ in range(2))
    assert torch.equal(algorithm.models(once), algorithm.models(twice))
    for key, value in before.items():
        same = torch.equal(value, state[key]) if isinstance(value, Tensor) else value == state[key]
        assert same, f"{key} was changed in place"


@every_algorithm
def test_state_is_tensors_and_plain_values(name, unequal_users):
    _, state = trained(name, make_federation(unequal_users, model_for(name)), rounds=1)
    assert all(isinstance(v, Tensor | float | int | str | bool) for v in state.values())


@every_algorithm
def test_traffic_is_what_models_can_be_told_apart(name, unequal_users):
    """Nobody deploys a model that was neither broadcast nor trained at home."""
    fed = make_federation(unequal_users, model_for(name))
    algorithm, state = trained(name, fed)
    traffic = algorithm.traffic(fed, state)
    assert min(traffic.down, traffic.up, traffic.work) >= 0
    distinct = len(torch.unique(algorithm.models(state), dim=0))
    if algorithm.tested_model == "aggregated":
        assert distinct <= traffic.down
    if traffic.down == 0:
        assert traffic.up == 0


@every_algorithm
def test_accuracy_is_well_defined_with_unequal_and_tiny_users(name):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for n in (1, 2, 3, 40)]
    users = Users.from_arrays(pairs, classes=3, groups=[0, 0, 1, 1])
    fed = make_federation(users, model_for(name, "logistic"))
    algorithm, state = trained(name, fed)
    accuracy = algorithm.metrics(fed, state)["accuracy"].cpu().numpy()
    assert 0 <= ACCURACY.worst(accuracy) <= ACCURACY.mean(accuracy) <= 100


@every_algorithm
def test_it_trains_batchnorm_models_and_buffers_stay_finite(name):
    users = make_users([9, 14, 4], shape=(1, 8, 8), groups=[0, 0, 1])
    fed = make_federation(users, "vgg", batch=4)
    algorithm = find(name)
    start = algorithm.models(algorithm.start(fed))
    theta = models(name, fed, rounds=2)
    assert torch.isfinite(theta).all()
    if name not in ("fedem", "fedmoe"):  # their rows are longer than a model's
        buffers = slice(fed.rows.trainable, None)
        assert not torch.equal(theta[:, buffers], start[:, buffers])


@every_algorithm
def test_it_describes_itself(name):
    kind = REGISTRY[name]
    assert kind.name == name
    assert kind.reference
    assert find(name).tested_model in ("aggregated", "personalised", "local")
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert find(name).label == name


def test_every_user_is_a_federation_member_on_its_own_data(unequal_users):
    """Local training of a user does not depend on who else is there."""
    fed = make_federation(unequal_users)
    together = fed.train(fed.initial(), 1)
    for user in range(fed.m):
        alone = make_federation(unequal_users.select([user]))
        assert isinstance(alone, Federation)
        assert close(alone.train(alone.initial(), 1)[0], together[user], atol=1e-12)
