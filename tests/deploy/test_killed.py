"""``kill -9`` of a user and of the server: real processes, on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import ucfl
from deploy.loopback import SCENARIO, people
from ucfl.deploy.demo import server_options, user_names
from ucfl.deploy.processes import Processes, processes
from ucfl.errors import UcflError
from ucfl.runs import Run
from ucfl.runs.checkpoint import Checkpoint

#: Seconds until a test that waits for something gives up; nothing depends on it otherwise.
PATIENCE = 180.0
USERS = 3


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path) as found:
        found.prepare(people(USERS), user_names(USERS))
        yield found


def until(condition: Callable[[], bool], what: str, started: Processes) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen:\n{started.log('server')[-3000:]}")
        time.sleep(0.02)


def stored(folder: Path) -> Checkpoint | None:
    """The newest checkpoint, if there is one."""
    try:
        return Checkpoint.read(folder / "checkpoint.safetensors", torch.device("cpu"))
    except UcflError:
        return None


def reached(folder: Path, t: int) -> bool:
    point = stored(folder)
    return point is not None and point.round >= t


def options(folder: Path, algorithm: str, rounds: int, deadline: float) -> list[str]:
    """Of a server; not --drawn, since these users are nobody's scenario."""
    scenario = SCENARIO.change({"rounds": rounds, "users": USERS})
    found = server_options(scenario, algorithm, 0, folder, folder / "run", deadline)
    return found[: found.index("--drawn")]


def test_a_killed_server_goes_on_and_ends_as_if_nothing_had_been(
    started: Processes, tmp_path: Path
) -> None:
    rounds, folder = 30, tmp_path / "run"
    given = options(tmp_path, "layered-user-centric:personal_model=always", rounds, 60.0)
    started.start_server(*given)
    for name in user_names(USERS):
        started.start_user(name, "--reproducible")
    until(lambda: reached(folder, 3), "round 3", started)
    started.kill("server")
    killed = stored(folder)
    assert killed is not None
    assert killed.round < rounds
    again = started.start_server(*given, "--resume")
    assert again.wait(PATIENCE) == 0, started.log("server")
    run = Run.open(folder)
    assert run.about["sessions"][1]["after_round"] == killed.round
    alone = ucfl.run(
        SCENARIO,
        "layered-user-centric:personal_model=always",
        users=people(USERS),
        rounds=rounds,
        out=tmp_path / "alone",
        device="cpu",
    )
    for name, values in alone.checkpoint.history.items():
        found = run.checkpoint.history[name]
        torch.testing.assert_close(found, values, rtol=0, atol=1e-6)
    # The collaboration round was not repeated: its one measurement per user is the only one.
    for name in user_names(USERS):
        assert started.log(name).count("collaboration round") == 1
    assert (started.folder / "user-00" / "state" / "model.safetensors").exists()


def test_a_killed_user_is_missed_and_comes_back(started: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    server = started.start_server(*options(tmp_path, "ditto", 100_000, 3.0))
    for name in user_names(USERS):
        started.start_user(name)
    until(lambda: reached(folder, 2), "round 2", started)
    started.kill("user-02")  # whatever it was doing for the round
    until(lambda: "user-02 did not answer" in started.log("server"), "a missed round", started)
    missed = stored(folder)
    assert missed is not None
    until(lambda: reached(folder, missed.round + 3), "rounds without the user", started)
    started.start_user("user-02")

    def back() -> bool:
        point = stored(folder)
        if point is None or point.present is None:
            return False
        mine = point.present[:, 2].int()
        return bool(((mine[1:] - mine[:-1]) > 0).any()) and bool(mine[-1])

    until(back, "the user's return", started)
    os.killpg(server.pid, signal.SIGTERM)  # it stops after the round
    assert server.wait(PATIENCE) == 130
    point = stored(folder)
    assert point is not None
    assert point.present is not None
    # On a busy machine others may be late, too; but somebody was there in every round.
    assert point.present[:, :2].any(1).all()
    assert not point.present[:, 2].all()


def processes_with(word: str) -> list[int]:
    """Processes of this machine whose command has a word in it, but for zombies."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in command:
            found.append(int(place.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = ["deploy", "demo", "--rounds", "100000", "--out", str(tmp_path / "run")]
    demo = subprocess.Popen(
        [sys.executable, "-m", "ucfl", *command],
        env={**os.environ, "TMPDIR": str(work), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        # A test that is run in the background may have been told to ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        end = time.monotonic() + PATIENCE
        while len(processes_with(str(work))) < 5:  # a server and four users
            assert time.monotonic() < end
            assert demo.poll() is None
            time.sleep(0.05)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE) == 130
        assert not processes_with(str(work))
    finally:
        demo.kill()
        for left in processes_with(str(work)):
            os.kill(left, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("method", ["layered-user-centric", "user-centric:streams=auto"])
def test_eight_users_have_the_simulations_accuracies_within_a_tenth_of_a_point(
    method: str, tmp_path: Path
) -> None:
    out, rounds = tmp_path / "run", 8
    words = ["deploy", "demo", "--algorithm", method, "--users", "8", "--rounds", str(rounds)]
    subprocess.run(
        [sys.executable, "-m", "ucfl", *words, "--out", str(out)], check=True, timeout=900
    )
    deployed = Run.open(out)
    scenario = ucfl.users.find("rotated-mnist").change({"users": 8, "rounds": rounds})
    alone = ucfl.run(scenario, method, out=tmp_path / "alone", device="cpu")
    for split in ("test", "validation"):
        apart = deployed.split(split) - alone.split(split)
        assert abs(100 * apart).max() <= 0.1
    assert deployed.collaboration is not None
    assert alone.collaboration is not None
    torch.testing.assert_close(deployed.collaboration.weights, alone.collaboration.weights)
    assert torch.equal(deployed.collaboration.labels, alone.collaboration.labels)
    assert torch.equal(deployed.checkpoint.traffic, alone.checkpoint.traffic)
