"""Between machines, a method computes what it computes in a simulation."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import RecordDict

import ucfl
from deploy.loopback import SCENARIO, loopback, people
from ucfl.collaboration import Mixing
from ucfl.deploy.contents import call_of, content, tensors_of
from ucfl.deploy.keeping import Store
from ucfl.deploy.mixed import Broadcast, after_round
from ucfl.deploy.protocol import ROUND
from ucfl.deploy.supernode import Answer, SuperNode
from ucfl.deploy.user import User
from ucfl.runs.deployment import BETWEEN_MACHINES
from ucfl.runs.progress import Progress

KEPT = {"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep"}
#: A method, whether its users compute as an ordinary simulation does, and changes of the scenario.
CASES: list[tuple[str, bool, dict[str, Any]]] = [
    ("layered-user-centric", True, {}),
    ("layered-user-centric:personal_model=always", False, {"weight_decay": 0.01}),
    ("user-centric", False, {}),
    ("user-centric:streams=auto", True, {}),
    ("user-centric:likeness=prototypes", False, {}),
    ("user-centric:streams=2:sketch=20", False, {}),
    ("fedavg", False, {}),
    ("fedprox:tested=local", False, {}),
    ("ditto", False, KEPT),
    ("local", False, KEPT),
]


@pytest.mark.parametrize(("method", "reproducible", "change"), CASES)
def test_weights_plan_and_every_rounds_metrics_are_the_simulations(
    method: str, reproducible: bool, change: dict[str, Any], tmp_path: Path
) -> None:
    users, scenario = people(), SCENARIO.change(change)
    alone = ucfl.run(
        scenario,
        method,
        users=users,
        out=tmp_path / "alone",
        device="cpu",
        plain=not reproducible,
    )
    with loopback(tmp_path) as found:
        for name in users.names:
            found.start_user(name, users, reproducible=reproducible)
        run = found.train(method, len(users), **change)
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
    alone = ucfl.run(half, method, users=users, out=tmp_path / "alone", device="cpu", plain=True)
    with loopback(tmp_path) as found:
        for name in users.names:
            found.start_user(name, users)
        run = found.train(method, len(users), participation=0.5)
    assert torch.equal(run.checkpoint.cohorts, alone.checkpoint.cohorts)
    assert not run.checkpoint.cohorts.all()
    for name, values in alone.checkpoint.history.items():
        torch.testing.assert_close(run.checkpoint.history[name], values, rtol=0, atol=1e-6)
    assert torch.equal(run.checkpoint.traffic, alone.checkpoint.traffic)


def test_a_user_who_diverges_is_left_out_as_in_a_simulation(tmp_path: Path) -> None:
    users = people()
    inputs = users.train.inputs.clone()
    inputs[3] *= 1e30
    users = users.with_train(inputs, users.train.targets)
    alone = ucfl.run(
        SCENARIO, "fedavg", users=users, out=tmp_path / "alone", device="cpu", plain=True
    )
    with loopback(tmp_path) as found:
        for name in users.names:
            found.start_user(name, users)
        run = found.train("fedavg", len(users))
    assert run.dropped == alone.dropped == {3: 1}
    assert torch.equal(run.checkpoint.cohorts, alone.checkpoint.cohorts)
    for name, values in alone.checkpoint.history.items():
        found_now = run.checkpoint.history[name]
        torch.testing.assert_close(found_now, values, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("method", ["user-centric:streams=2", "ditto"])
def test_a_round_goes_on_without_a_straggler_who_takes_part_again(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users, blocked = people(), threading.Event()
    with loopback(tmp_path) as found:
        for name in users.names[:3]:
            found.start_user(name, users)
        slow = User("user-03", users.select([3]), Store(tmp_path / "user-03" / "state"))

        def answer(node: SuperNode) -> Answer:
            slow.ended = node.end

            def late(kind: str, asked: RecordDict) -> RecordDict:
                reply = slow.answer(kind, asked)
                if kind == ROUND and call_of(asked)["round"] == 2:
                    assert blocked.wait(60)  # it has trained, and its answer is too late
                return reply

            return late

        found.start("user-03", answer, found.key("user-03"))
        server = found.server(method, 4, deadline=3.0, rounds=6)

        def on_round(progress: Progress) -> None:
            if progress.round == 3:
                blocked.set()
                since = time.monotonic()
                while found.link.heard("user-03") <= since:  # until it asks for messages again
                    assert time.monotonic() < since + 30
                    time.sleep(0.01)

        server.on_round = on_round
        run = server.run(resume=False, fresh=False)
        assert not found.errors
    cohorts = run.checkpoint.cohorts
    assert not cohorts[1, 3]
    assert cohorts[-1, 3]
    assert "user-03 did not answer within 3 seconds" in caplog.text
    alone = ucfl.run(
        SCENARIO,
        method,
        rounds=6,
        users=users,
        participation=lambda t: torch.nonzero(cohorts[t - 1])[:, 0].tolist(),
        out=tmp_path / "alone",
        device="cpu",
        plain=True,
    )
    for name, values in alone.checkpoint.history.items():
        there = run.checkpoint.history[name].isfinite()
        assert there[:, :3].all()
        assert there[-1].all()
        torch.testing.assert_close(
            run.checkpoint.history[name][there], values[there], rtol=0, atol=1e-6
        )


def test_streams_are_what_the_mixing_matrix_gives_and_silent_ones_keep_their_model() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes, groups = torch.tensor([3, 1, 2, 5]), torch.tensor([0, 0, 1, 2])
    first = torch.randn(4, 7, generator=generator)
    state = after_round({}, Mixing.within(sizes, groups), dict(enumerate(first)), 7)
    present = torch.tensor([True, False, False, True])
    rule, second = (
        Mixing.within(sizes, groups).among(present),
        torch.randn(4, 7, generator=generator),
    )
    before = Mixing.within(sizes, groups) @ first
    uploads = {user: second[user] for user in (0, 3)}
    broadcast = Broadcast(after_round(state, rule, uploads, 7), rule, 7)
    expected = rule @ torch.where(present[:, None], second, before)
    for user in range(4):
        _, records = broadcast.to(user)
        (found,) = (tensors_of(content({}, **records), name)["columns"] for name in records)
        torch.testing.assert_close(found, expected[user])
    assert broadcast.bytes == 3 * 7 * 4
    assert broadcast.delivered == 4 * 7 * 4


def _check_bytes(run: ucfl.Run) -> None:
    """What was sent is what ``wireless`` counts."""
    entries = json.loads((run.folder / BETWEEN_MACHINES).read_text())["bytes"]
    by_round = {entry["round"]: entry for entry in entries}
    for t, (down, up, _) in enumerate(run.checkpoint.traffic.tolist(), 1):
        assert by_round[t]["down"] == pytest.approx(down * run.model_bytes)
        assert by_round[t]["up"] == pytest.approx(up * run.model_bytes * run.users)
