"""A user who comes later joins the nearest stream, and nothing changes for the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import ucfl
from deploy.loopback import SCENARIO, Loopback, loopback, people
from ucfl import algorithms
from ucfl.deploy.server import Server
from ucfl.runs import Run, federation
from ucfl.runs.progress import Progress

METHODS = ["layered-user-centric:personal_model=never", "user-centric:streams=2", "fedavg", "ditto"]
ROUNDS = 4


def with_a_late_user(found: Loopback, method: str) -> tuple[Run, Server]:
    """Trained with it."""
    server = late_server(found, method)
    return server.run(resume=False, fresh=False), server


def late_server(found: Loopback, method: str, stop_at: int = -1) -> Server:
    """Four users from the start, and a fifth after the first round."""
    users = people(5)
    for name in users.names[:4]:
        found.start_user(name, users)
    server = found.server(method, 4, rounds=ROUNDS)
    late = users.names[4]

    def on_round(progress: Progress) -> None:
        if progress.round == 1 and late not in found.threads:
            found.start_user(late, users)
            with found.link.state.changed:
                assert found.link.state.changed.wait_for(lambda: late in found.link.online(), 30)

        if progress.round == stop_at:
            raise KeyboardInterrupt

    server.on_round = on_round
    return server


def simulated(method: str, folder: Path) -> Run:
    """The four users who are there from the start, without the fifth."""
    return ucfl.run(
        SCENARIO,
        method,
        rounds=ROUNDS,
        users=people(5).select(range(4)),
        out=folder / "alone",
        device="cpu",
        plain=True,
    )


@pytest.mark.parametrize("method", METHODS)
def test_it_gets_a_simulations_newcomers_place_and_disturbs_nobody(
    method: str, tmp_path: Path
) -> None:
    users = people(5)
    alone = simulated(method, tmp_path)
    with loopback(tmp_path) as found:
        run, _ = with_a_late_user(found, method)
        assert not found.errors
    assert run.names == list(users.names)
    cohorts = run.checkpoint.cohorts
    assert cohorts[:, :4].all()
    joined = int(cohorts[:, 4].int().argmax())  # the first round that it took part in
    assert 1 <= joined < ROUNDS
    assert cohorts[joined:, 4].all()
    for name, values in alone.checkpoint.history.items():
        theirs = run.checkpoint.history[name]
        torch.testing.assert_close(theirs[:, :4], values, rtol=0, atol=1e-6)
        assert theirs[:joined, 4].isnan().all()
        assert theirs[joined:, 4].isfinite().all()
    _check_place(method, users, run, alone)


def _check_place(method: str, users: ucfl.Users, run: Run, alone: Run) -> None:
    """The newcomer's model is the one that a simulation gives it after the last round."""
    algorithm = algorithms.find(method)
    fed = federation(SCENARIO, 0, users=users.select(range(4)), device="cpu", plain=True)
    arrivals = fed.of(replace(users.select([4]), newcomers=None))
    theta = algorithm.newcomers(fed, alone.checkpoint.state, arrivals)
    assert theta is not None
    if method == "ditto":  # its own model trains on from there
        return
    found = arrivals.metrics(theta)["accuracy"]
    torch.testing.assert_close(run.checkpoint.history["test_accuracy"][-1, 4:], found.float())


def test_readers_take_the_record_of_a_run_with_late_users(tmp_path: Path) -> None:
    with loopback(tmp_path) as found:
        run, server = with_a_late_user(found, "user-centric:streams=2")
    again = Run.open(run.folder)
    again.record.check()
    assert again.record.users == 5
    weights = again.collaboration
    assert weights is not None
    assert weights.weights.shape == (5, 5)
    assert not weights.weights[:, 4].any()  # no weight in anybody's mixture
    assert weights.weights[4].sum() == pytest.approx(1)
    # A finished run is found finished.
    assert server.run(resume=True, fresh=False).checkpoint.round == ROUNDS


def test_a_run_with_a_late_user_goes_on_after_a_stop(tmp_path: Path) -> None:
    method = "user-centric:streams=2"
    alone = simulated(method, tmp_path)
    with loopback(tmp_path) as found:
        server = late_server(found, method, stop_at=3)
        with pytest.raises(KeyboardInterrupt):
            server.run(resume=False, fresh=False)
        again = found.server(method, 4, rounds=ROUNDS)
        run = again.run(resume=True, fresh=False)
        assert not found.errors
    assert run.users == 5
    assert run.checkpoint.cohorts[-1].all()
    assert run.about["sessions"][-1]["after_round"] >= 2
    for name, values in alone.checkpoint.history.items():
        found_now = run.checkpoint.history[name][:, :4]
        torch.testing.assert_close(found_now, values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "layered-user-centric:personal_model=never"])
def test_a_round_in_which_only_late_users_are_there_mixes_nothing(
    method: str, tmp_path: Path
) -> None:
    with loopback(tmp_path) as found:
        server = late_server(found, method)
        take = server._take_upload

        def founders_are_late(user: int, *given: object) -> None:
            if user == 4 or len(server.roster.members) < 5:
                take(user, *given)  # type: ignore[arg-type]

        server._take_upload = founders_are_late  # type: ignore[method-assign]
        run = server.run(resume=False, fresh=False)
    cohorts = run.checkpoint.cohorts
    assert cohorts[-1].tolist() == [False, False, False, False, True]
    assert run.checkpoint.round == ROUNDS
