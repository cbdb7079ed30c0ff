"""Declared traffic is what a real run sends.

Users meet in one place only: the product of a mixing matrix with everyone's rows (and, before the
first round, the collaboration round). A meter there counts the bytes that go up and down, and one
at the gradients counts the examples that users work through. That there is no other place is
tested too: with the wires cut, nobody's model depends on anybody else's data.
"""

import dataclasses

import numpy as np
import pytest
import torch

import ucfl
from conftest import close, make_federation, make_users, model_for
from ucfl.algorithms import REGISTRY, find, layered_user_centric
from ucfl.collaboration import Mixing
from ucfl.federation import Federation
from ucfl.federation.model import LocalModel

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
every_algorithm = pytest.mark.parametrize("name", REGISTRY)
#: All of them, and one whose personal part is scattered over the model.
with_parts = pytest.mark.parametrize("name", [*REGISTRY, "fedper:personal=1+5"])


class Meter:
    """Bytes down, bytes up and passes over the data since the last reading."""

    def __init__(self, monkeypatch, algorithm, model_class):
        self.down = self.up = self.worked = self.models = 0
        self.inside = False
        mix, gradient = Mixing.__matmul__, LocalModel.gradient
        meet, forward = Federation.collaboration_round, model_class.forward
        prototypes, priors = Federation.prototypes, layered_user_centric.log_priors

        def metered_mix(mixing, theta):
            there = slice(None) if mixing.present is None else mixing.present
            self.up += theta[there].nbytes
            self.down += len(mixing.labels[there].unique()) * theta[0].nbytes
            return mix(mixing, theta)

        def metered_forward(module, *args):
            self.models += 1
            return forward(module, *args)

        def metered_gradient(model, weights, rest, batch):
            self.models = 0
            out = gradient(model, weights, rest, batch)
            self.worked += int(batch.count) * self.models  # a mixture holds several models
            return out

        def metered_meeting(fed, theta, *args):
            found = meet(fed, theta, *args)
            self.down += len(theta.unique(dim=0)) * theta[0].nbytes
            self.up += found.full.nbytes
            return found

        def metered_prototypes(fed, theta, *args):
            found = prototypes(fed, theta, *args)
            if torch.equal(theta, fed.initial()):  # everyone draws other networks by the seed
                self.down += theta[0].nbytes
            self.up += len(theta) * found.numbers * theta.element_size()
            self.worked += int(fed.sizes.sum()) / 3
            return found

        def metered_priors(counts, groups):
            """The server tells each group its labels' frequencies and their concentration."""
            self.down += len(np.unique(groups)) * (counts.shape[1] + 1) * 4
            return priors(counts, groups)

        def metered_evaluation(name, models):
            original = getattr(Federation, name)

            def method(fed, theta, split="validation"):
                if self.inside:  # what a round needs, not what the experimenter looks at
                    there = slice(None) if fed.present is None else fed.present
                    sizes = fed.users.split(split).sizes[there]
                    self.worked += models(theta[there]) * int(sizes.sum()) / 3
                return original(fed, theta, split)

            monkeypatch.setattr(Federation, name, method)

        for name in ("metric", "metrics", "loss", "example_losses", "outputs"):
            metered_evaluation(name, lambda theta: 1)
        metered_evaluation("losses", len)
        round_ = algorithm.round

        def metered_round(*args):
            self.inside = True
            state = round_(*args)
            self.inside = False
            return state

        monkeypatch.setattr(algorithm, "round", metered_round)
        monkeypatch.setattr(Mixing, "__matmul__", metered_mix)
        monkeypatch.setattr(LocalModel, "gradient", metered_gradient)
        monkeypatch.setattr(Federation, "collaboration_round", metered_meeting)
        monkeypatch.setattr(Federation, "prototypes", metered_prototypes)
        monkeypatch.setattr(layered_user_centric, "log_priors", metered_priors)
        monkeypatch.setattr(model_class, "forward", metered_forward)

    def read(self):
        values = (self.down, self.up, self.worked)
        self.down = self.up = self.worked = 0
        return values


@pytest.mark.parametrize("participation", [1.0, 0.4])
@with_parts
def test_declared_traffic_is_counted_traffic_in_a_real_run(
    name, participation, monkeypatch, tmp_path
):
    users, rounds = 8, 5
    scenario = ucfl.Scenario(
        users=users,
        points=400,
        rounds=rounds,
        model=model_for(name),
        groups=2,
        participation=participation,
    )
    fed = ucfl.runs.federation(scenario)
    meter = Meter(monkeypatch, type(find(name)), type(fed.module(fed.initial()[0])))
    counted = []
    run = ucfl.run(
        scenario,
        name,
        out=tmp_path / "run",
        plain=True,  # stacked, chunks are filled up with copies, who would be counted too
        on_round=lambda progress: counted.append(meter.read()),
        on_note=lambda note: note.startswith("executor") or counted.append(meter.read()),
    )
    if len(counted) > rounds:
        down, up, worked = counted.pop(0)
        start = run.start_traffic
        assert down == pytest.approx(start.down_bytes(run.model_bytes), rel=1e-12)
        assert up == pytest.approx(start.up_bytes(run.model_bytes, users), rel=1e-12)
        assert worked == pytest.approx(start.work * fed.examples(fed.training), rel=1e-12)
    else:
        assert dataclasses.astuple(run.start_traffic) == (0, 0, 0)
    assert len(counted) == rounds
    sent, cohorts = run.checkpoint.traffic.tolist(), run.checkpoint.cohorts
    for (down, up, worked), row, there in zip(counted, sent, cohorts, strict=True):
        declared, here = ucfl.wireless.Traffic(*row), fed.among(there)
        assert down == pytest.approx(declared.down_bytes(run.model_bytes), rel=1e-12)
        assert up == pytest.approx(declared.up_bytes(run.model_bytes, int(there.sum())), rel=1e-12)
        assert worked == pytest.approx(declared.work * here.examples(fed.training), rel=1e-6)
    assert int(cohorts[0].sum()) == round(participation * users)


@pytest.mark.parametrize("personal", ["head", "body", "1+5"])
def test_what_stays_with_its_user_is_not_metered(personal, monkeypatch, unequal_users):
    fed, algorithm = make_federation(unequal_users), find(f"fedper:personal={personal}")
    meter = Meter(monkeypatch, type(algorithm), type(fed.module(fed.initial()[0])))
    state = algorithm.round(fed, algorithm.start(fed), 1)
    shared = fed.rows.size - fed.part(personal).count
    assert meter.read()[:2] == (8 * shared, 8 * shared * fed.m)
    there = fed.among(torch.tensor([True, False, True, False, False]))
    algorithm.round(there, state, 2)
    assert meter.read()[:2] == (8 * shared, 8 * shared * 2)


def test_bytes_follow_the_precision(unequal_users):
    single = make_federation(unequal_users, double=False)
    double = make_federation(unequal_users)
    assert 2 * single.rows.bytes == double.rows.bytes == 8 * double.rows.size


# FedEM's components and IFCA's clusters have no owner that they could stay with when the wires are
# cut. (What IFCA's users choose by: test_more_rivals.py.)
#: FedEM's and IFCA's users meet in what they start from as well. The layered method's prior is
#: everyone's labels' frequencies, and models of users' own are for users who differ, which the
#: server tells: with the rest of it nobody meets.
WIRED = {
    "fedem": None,
    "ifca": None,
    "layered-user-centric": "layered-user-centric:prior=false:personal_model=never",
}


@pytest.mark.parametrize("name", [WIRED.get(n, n) for n in REGISTRY if WIRED.get(n, n)])
def test_with_the_wires_cut_nobody_knows_of_the_others(name, monkeypatch):
    """User 0's model stays the same when everyone else's data are others."""
    monkeypatch.setattr(Mixing, "__matmul__", lambda mixing, theta: theta.clone())
    sizes, groups = [20, 8, 13, 9], [0, 0, 1, 1]
    ours, theirs = (make_users(sizes, groups=groups, seed=seed) for seed in (0, 1))
    mixed = replaced_first(theirs, ours)
    # The parallel form keeps a stream's model with its first listener: its wire is the next launch.
    rounds = 1 if name == "parallel-user-centric" else 2
    results = []
    for users in (ours, mixed):
        fed, algorithm = make_federation(users, model_for(name)), find(name)
        state = algorithm.start(fed)
        for t in range(1, rounds + 1):
            state = algorithm.round(fed, state, t)
        results.append(algorithm.models(state)[0])
    assert close(*results, atol=1e-12)


def replaced_first(users, by):
    """The users with the first one of another population."""

    def swap(name):
        there, here = users.split(name), by.split(name)
        inputs, labels = there.inputs.clone(), there.targets.clone()
        inputs[0], labels[0] = here.inputs[0], here.targets[0]
        return dataclasses.replace(there, inputs=inputs, targets=labels)

    return dataclasses.replace(
        users, train=swap("train"), validation=swap("validation"), test=swap("test")
    )
