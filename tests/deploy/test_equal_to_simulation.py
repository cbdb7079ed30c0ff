"""Between machines, a method computes what it computes in a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import ucfl
from deploy.loopback import SCENARIO, loopback, people
from ucfl.runs.deployment import BETWEEN_MACHINES

METHODS = [
    "layered-user-centric",
    "layered-user-centric:personal_model=always",
    "user-centric",
    "user-centric:streams=auto",
    "user-centric:likeness=prototypes",
    "fedavg",
    "fedprox:tested=local",
    "ditto",
    "local",
]


@pytest.mark.parametrize("method", METHODS)
def test_weights_plan_and_every_rounds_metrics_are_the_simulations(
    method: str, tmp_path: Path
) -> None:
    users = people()
    alone = ucfl.run(SCENARIO, method, users=users, out=tmp_path / "alone", device="cpu")
    with loopback(tmp_path) as found:
        for name in users.names:
            found.start_user(name, users)
        run = found.train(method, len(users))
        assert not found.errors
    for name, values in alone.checkpoint.history.items():
        torch.testing.assert_close(run.checkpoint.history[name], values, rtol=0, atol=1e-6)
    theirs, ours = run.collaboration, alone.collaboration
    if ours is not None:
        assert theirs is not None
        torch.testing.assert_close(theirs.weights, ours.weights, rtol=1e-5, atol=1e-7)
        assert torch.equal(theirs.labels, ours.labels)
    assert torch.equal(run.checkpoint.traffic, alone.checkpoint.traffic)
    assert run.start_traffic == alone.start_traffic
    _check_bytes(run)


@pytest.mark.parametrize("method", ["user-centric:streams=2", "ditto"])
def test_cohorts_are_the_simulations(method: str, tmp_path: Path) -> None:
    users, half = people(), SCENARIO.change({"participation": 0.5})
    alone = ucfl.run(half, method, users=users, out=tmp_path / "alone", device="cpu")
    with loopback(tmp_path) as found:
        for name in users.names:
            found.start_user(name, users)
        run = found.train(method, len(users), participation=0.5)
    assert torch.equal(run.checkpoint.cohorts, alone.checkpoint.cohorts)
    assert not run.checkpoint.cohorts.all()
    for name, values in alone.checkpoint.history.items():
        torch.testing.assert_close(run.checkpoint.history[name], values, rtol=0, atol=1e-6)
    assert torch.equal(run.checkpoint.traffic, alone.checkpoint.traffic)


def _check_bytes(run: ucfl.Run) -> None:
    """What was sent is what ``wireless`` counts."""
    entries = json.loads((run.folder / BETWEEN_MACHINES).read_text())["bytes"]
    by_round = {entry["round"]: entry for entry in entries}
    for t, (down, up, _) in enumerate(run.checkpoint.traffic.tolist(), 1):
        assert by_round[t]["down"] == pytest.approx(down * run.model_bytes)
        assert by_round[t]["up"] == pytest.approx(up * run.model_bytes * run.users)
