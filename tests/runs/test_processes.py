"""Users shared out to two real processes on Gloo: the same results as in one."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from commands import run_ucfl
from runs.test_runs import write_users
from stories import learnt_first
from ucfl import distributed
from ucfl.algorithms import REGISTRY, find
from ucfl.collaboration import Mixing
from ucfl.report import gather, tell
from ucfl.runs import Run

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
SHARDED = [name for name, kind in REGISTRY.items() if kind.sharded and name != "oracle"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("users") / "data"
    write_users(folder)
    return folder


def in_two_processes(*arguments):
    return subprocess.run(
        [sys.executable, *TORCHRUN, "-m", "ucfl", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (["participation=1.0"], "fedavg,user-centric:streams=2,scaffold,fedper"),
        (["participation=1 user"], "fedavg,user-centric:streams=2,scaffold,fedper"),
        (["deadline=7.5", "system=slow-uplink"], "user-centric:streams=2,fedper"),
        (["deadline=1.05", "system=urban-macro"], "user-centric:streams=2,fedper"),
        (["newcomers=0.4"], "fedavg,user-centric:streams=2,fedper"),
    ],
)
def test_two_processes_give_the_results_of_one(settings, names, data, tmp_path):
    """Histories, and every user's model to 1e-5; printed once; several algorithms in one go.

    With one user a round, one of the processes has none.
    """
    options = ["compare", data, "--model", "mlp", "--rounds", 3, "--algorithms", names, "--json"]
    options += [word for setting in settings for word in ("--set", setting)]
    two = in_two_processes(*options, "--out", tmp_path / "two")
    assert two.returncode == 0, two.stderr
    json.loads(two.stdout)  # one object, from the first process alone
    one = run_ucfl(*options, "--out", tmp_path / "one", check=True)
    assert one.returncode == 0
    folders = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == folders
    for name in folders:
        alone, shared = (Run.open(tmp_path / kind / name) for kind in ("one", "two"))
        assert shared.about["processes"] == 2
        assert shared.about["users"] == alone.about["users"]
        rest = load_file(tmp_path / "two" / name / "checkpoint-1of2.safetensors")["state/theta"]
        theta = torch.cat([shared.checkpoint.state["theta"], rest])
        assert torch.allclose(theta, alone.checkpoint.state["theta"], atol=1e-5)
        assert shared.history["value"].tolist() == pytest.approx(
            alone.history["value"].tolist(), abs=1e-5
        )
        assert shared.traffic == alone.traffic
        for user in shared.names:  # also those of the second process
            pair = [run.model(user).state_dict() for run in (shared, alone)]
            assert all(torch.allclose(pair[0][key], pair[1][key], atol=1e-5) for key in pair[0])
        assert torch.equal(shared.checkpoint.cohorts, alone.checkpoint.cohorts)
        assert torch.equal(shared.checkpoint.missed, alone.checkpoint.missed)
        assert alone.checkpoint.missed.any() == ("deadline" in settings[0])
        assert (alone.newcomers is None) == ("newcomers" not in settings[0])
        for metric, values in alone.checkpoint.newcomers.items():
            assert torch.allclose(shared.checkpoint.newcomers[metric], values, atol=1e-5), metric
        assert (shared.audience is None) == (alone.audience is None)
        if shared.audience is not None:  # whichever users the first process has
            assert shared.audience.labels.tolist() == alone.audience.labels.tolist()
            assert shared.collaboration.labels.tolist() == alone.collaboration.labels.tolist()
    assert learnt_first(tell(gather([tmp_path / "two"]))["populations"][0])


def test_a_run_is_whole_for_every_process_when_it_is_done(data, tmp_path):
    """All of them read its history at the end, which the first one writes."""
    done = in_two_processes(
        "run", data, "--model", "mlp", "--rounds", 2, "--out", tmp_path / "run", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2


def test_a_method_that_needs_all_models_says_so(data, tmp_path):
    done = in_two_processes(
        "run", data, "--model", "mlp", "--algorithm", "cfl", "--rounds", 2, "--out", tmp_path / "r"
    )
    assert done.returncode != 0
    assert done.stderr.count("looks at all users' models at once") == 1


def layered(fed):
    """The body averaged over everyone, the head inside each group; a layer stays with its user."""
    everyone, groups = Mixing.average(fed.sizes), Mixing.within(fed.sizes, fed.groups)
    return Mixing.by_part({fed.part("body") - fed.part("3"): everyone, fed.part("head"): groups})


#: Run in two processes: which tensors a round exchanges, and what it leaves in Θ.
EXCHANGE = """
import sys, torch, torch.distributed as dist, weakref
sys.path[:0] = {paths!r}
from conftest import make_federation, make_users, model_for
from ucfl.algorithms import find
from ucfl import distributed
from ucfl.runs.building import my_users
from runs.test_processes import layered

import warnings; warnings.simplefilter("ignore")
distributed.join()
sent = []
reduce = dist.all_reduce
dist.all_reduce = lambda t, *a, **k: (sent.append(t.numel()), reduce(t, *a, **k))[1]
users = make_users([20, 8, 16, 33, 13], groups=[0, 0, 1, 1, 1])
for name in {names!r}:
    fed = make_federation(my_users(users), model_for(name))
    algorithm = find(name)
    state = algorithm.start(fed)
    for t in (1, 2):
        sent.clear()
        state = algorithm.round(fed, state, t)
    theta = distributed.gathered(algorithm.models(state))
    if distributed.is_first():
        torch.save((theta, list(sent), fed.rows.size), {folder!r} + "/" + name + ".pt")
for there in ([1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1]):
    mine = torch.tensor(there, dtype=torch.bool)[distributed.mine(fed.m, fed.device)]
    mixing, sent[:] = layered(fed).among(mine), []
    theta = distributed.gathered(mixing @ fed.train(fed.initial(), 1))
    exchanged, down = sum(sent), mixing.sent
    if distributed.is_first():
        torch.save((theta, exchanged, down), {folder!r} + "/parts" + str(sum(there)) + ".pt")
group = weakref.ref(dist.group.WORLD)
distributed.leave()
assert group() is None, "a group that is still there may abort the process at its end"
"""


def test_every_sharded_method_agrees_and_exchanges_streams_only(tmp_path, monkeypatch):
    import warnings

    from conftest import make_federation, make_users, model_for

    names = [*SHARDED, "oracle"]
    code = EXCHANGE.format(
        paths=[p for p in sys.path if p.endswith("tests")], names=names, folder=str(tmp_path)
    )
    script = tmp_path / "exchange.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, *TORCHRUN, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    users = make_users([20, 8, 16, 33, 13], groups=[0, 0, 1, 1, 1])
    for name in names:
        theta, sent, size = torch.load(tmp_path / f"{name}.pt")
        fed, algorithm = make_federation(users, model_for(name)), find(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = algorithm.start(fed)
        for t in (1, 2):
            state = algorithm.round(fed, state, t)
        assert torch.allclose(algorithm.models(state), theta, atol=1e-10), name
        assert sum(sent) == pytest.approx(algorithm.traffic(fed, state).down * size), name
    for there in ([1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1]):
        theta, sent, down = torch.load(tmp_path / f"parts{sum(there)}.pt")
        fed = make_federation(users)
        present = torch.tensor(there, dtype=torch.bool, device=fed.device)
        mixing = layered(fed).among(present)
        assert torch.allclose(mixing @ fed.train(fed.initial(), 1), theta, atol=1e-12)
        assert down == mixing.sent
        # Partial sums of every stream, heard or not; what stays is never exchanged.
        assert sent == (fed.part("body") - fed.part("3")).count + 2 * fed.part("head").count


def joined(monkeypatch):
    """What SIGTERM and SIGINT do while this process joins others."""
    seen = []

    def join(_):
        seen.extend(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", join)
    distributed.join()
    return seen


@pytest.fixture
def handlers():
    """Of SIGTERM and SIGINT: one of ours, and none."""

    def handler(number, frame):
        pass

    chosen = {signal.SIGTERM: handler, signal.SIGINT: signal.SIG_IGN}
    found = {number: signal.signal(number, handler) for number, handler in chosen.items()}
    yield chosen
    for number, handler in found.items():
        signal.signal(number, handler)


def test_signals_end_a_process_that_waits_for_others_unless_they_are_ignored(monkeypatch, handlers):
    assert joined(monkeypatch) == [signal.SIG_DFL, signal.SIG_IGN]
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_a_thread_that_joins_others_leaves_signals_alone(monkeypatch, handlers):
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(joined, monkeypatch).result() == list(handlers.values())


def test_processes_whose_users_are_of_unlike_groups_agree_on_who_shares_what(tmp_path):
    """The first process has one group, the second has two: bodies of all, heads of groups."""
    rng = np.random.default_rng(0)
    patterns, folder = rng.normal(size=(4, 12)), tmp_path / "data"
    folder.mkdir()
    for user in range(12):
        y = rng.integers(0, 4, 60)
        x = 2 * patterns[y] + 0.3 * rng.normal(size=(60, 12))
        renamed = (y + 1) % 4 if user > 6 else y
        np.savez(folder / f"user{user:02}.npz", x=x.astype(np.float32), y=renamed)
    options = [
        "run",
        folder,
        "--model",
        "mlp",
        "--rounds",
        2,
        "--algorithm",
        "layered-user-centric",
    ]
    two = in_two_processes(*options, "--out", tmp_path / "two")
    assert two.returncode == 0, two.stderr
    run_ucfl(*options, "--out", tmp_path / "one", check=True)
    alone, shared = (Run.open(tmp_path / kind) for kind in ("one", "two"))
    assert alone.history.value.tolist() == pytest.approx(shared.history.value.tolist(), abs=1e-4)
    for one, other in zip(alone.record.audience.parts, shared.record.audience.parts, strict=True):
        assert one[0] == other[0]
        assert one[1].tolist() == other[1].tolist()
    assert [len(set(labels.tolist())) for _, labels in shared.record.audience.parts] == [1, 2]
