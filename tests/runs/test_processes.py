"""Users shared out to two real processes on Gloo: the same results as in one."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from runs.test_runs import ucfl_command, write_users
from ucfl.algorithms import REGISTRY, find
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


@pytest.mark.parametrize("participation", ["1.0", "1 user"])
def test_two_processes_give_the_results_of_one(participation, data, tmp_path):
    """Histories, and every user's model to 1e-5; printed once; three algorithms in one go.

    With one user a round, one of the processes has none.
    """
    names = "fedavg,user-centric:streams=2,scaffold"
    options = ["compare", data, "--model", "mlp", "--rounds", 3, "--algorithms", names, "--json"]
    options += ["--set", f"participation={participation}"]
    two = in_two_processes(*options, "--out", tmp_path / "two")
    assert two.returncode == 0, two.stderr
    json.loads(two.stdout)  # one object, from the first process alone
    one = subprocess.run(
        ucfl_command(*options, "--out", tmp_path / "one"),
        capture_output=True,
        text=True,
        check=True,
    )
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
        assert (shared.audience is None) == (alone.audience is None)
        if shared.collaboration is not None:  # whichever users the first process has
            assert shared.collaboration.labels.tolist() == alone.collaboration.labels.tolist()
            assert shared.audience.tolist() == alone.audience.tolist()
    assert tell(gather([tmp_path / "two"]))["populations"][0]["collaboration"]


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


#: Run in two processes: which tensors a round exchanges, and what it leaves in Θ.
EXCHANGE = """
import sys, torch, torch.distributed as dist, weakref
sys.path[:0] = {paths!r}
from conftest import make_federation, make_users
from ucfl.algorithms import find
from ucfl import distributed
from ucfl.runs.building import my_users

import warnings; warnings.simplefilter("ignore")
distributed.join()
sent = []
reduce = dist.all_reduce
dist.all_reduce = lambda t, *a, **k: (sent.append(t.numel()), reduce(t, *a, **k))[1]
users = make_users([20, 8, 16, 33, 13], groups=[0, 0, 1, 1, 1])
for name in {names!r}:
    whole = make_federation(users)
    fed = make_federation(my_users(users))
    algorithm = find(name)
    state = algorithm.start(fed)
    for t in (1, 2):
        sent.clear()
        state = algorithm.round(fed, state, t)
    theta = distributed.gathered(algorithm.models(state))
    if distributed.is_first():
        torch.save((theta, list(sent), fed.rows.size), {folder!r} + "/" + name + ".pt")
group = weakref.ref(dist.group.WORLD)
distributed.leave()
assert group() is None, "a group that is still there may abort the process at its end"
"""


def test_every_sharded_method_agrees_and_exchanges_streams_only(tmp_path, monkeypatch):
    import warnings

    from conftest import make_federation, make_users

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
        fed, algorithm = make_federation(users), find(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = algorithm.start(fed)
        for t in (1, 2):
            state = algorithm.round(fed, state, t)
        assert torch.allclose(algorithm.models(state), theta, atol=1e-10), name
        assert sum(sent) == algorithm.traffic(fed, state).down * size, name
