"""FedPer: a part of the model stays with its user."""

import pytest
import torch
from torch import nn

import ucfl
from commands import run_ucfl
from conftest import DEVICE, close, make_federation, make_users
from ucfl.algorithms import find
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining

SIZES = [20, 8, 16, 33]


def after(name, fed, rounds):
    algorithm = find(name)
    state = algorithm.start(fed)
    for t in range(1, rounds + 1):
        state = algorithm.round(fed, state, t)
    return state["theta"]


@pytest.mark.parametrize("personal", ["head", "1", "1+5"])
def test_against_a_loop_over_named_tensors(personal):
    fed = make_federation(make_users(SIZES))
    words = ["5"] if personal == "head" else personal.split("+")
    theta = fed.initial()
    for t in (1, 2, 3):
        local = fed.train(theta, t)
        users = [dict(fed.module(row).named_parameters()) for row in local]
        rows = []
        for own in users:
            tensors = {
                name: own[name].cpu()
                if name.split(".")[0] in words
                else sum(n * user[name].cpu() for n, user in zip(SIZES, users, strict=True))
                / sum(SIZES)
                for name in own
            }
            rows.append(fed.rows.flatten(tensors))
        theta = torch.stack(rows).to(fed.device)
    assert close(after(f"fedper:personal={personal}", fed, 3), theta, atol=1e-12)


def test_personal_parts_never_reach_anybody_else():
    """Another user's personal part may hold anything."""
    fed, algorithm = make_federation(make_users(SIZES)), find("fedper")
    local, head = fed.train(fed.initial(), 1), fed.part("head").mask
    spoilt = local.clone()
    spoilt[1:, head] = torch.nan
    mixing = algorithm.mixing(fed)
    assert torch.equal((mixing @ spoilt)[0], (mixing @ local)[0])


class Normalised(nn.Sequential):
    """Its statistics are buffers, at the end of a row."""

    def __init__(self):
        super().__init__(
            nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        )


def test_personal_normalisation_is_fedbn():
    fed = Federation(
        make_users(SIZES), Normalised(), training=LocalTraining(batch=8, lr=0.05), device=DEVICE
    )
    theta = after("fedper:personal=normalisation", fed, 2)
    modules = [fed.module(row) for row in theta]
    for name in ("weight", "bias", "running_mean", "running_var"):
        values = [getattr(module[2], name) for module in modules]
        assert not any(torch.equal(values[0], other) for other in values[1:]), name
    assert all(torch.equal(modules[0][4].weight, module[4].weight) for module in modules)


@pytest.mark.parametrize(
    ("personal", "model", "sentence"),
    [
        ("conv1", "mlp", "has no part 'conv1'; it has head, body, and the layers 1, 3, 5."),
        ("normalisation", "mlp", "has no part 'normalisation'; it has head, body, and"),
        ("head", "logistic", "'head' is the whole model, so FedPer would average nothing"),
        ("head+body", "mlp", "'head+body' is the whole model"),
        ("head+", "mlp", "has no part ''"),
        ("", "mlp", "at least 1 character"),
    ],
)
def test_a_part_that_cannot_be_is_told_in_one_sentence(personal, model, sentence, tmp_path):
    scenario = ucfl.Scenario(name="four", users=4, rounds=1, model=model)
    name = f"fedper:personal={personal}"
    with pytest.raises(UcflError) as told:
        ucfl.run(scenario, name, users=make_users(SIZES), out=tmp_path / "r")
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_and_the_exit_code_is_2(tmp_path):
    done = run_ucfl("run", "--algorithm", "fedper:personal=conv1", "--model", "mlp", cwd=tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert said.endswith(
        "the model has no part 'conv1'; it has head, body, and the layers 1, 3, 5."
    )
    assert not list(tmp_path.iterdir())
