"""Keys, certificates, users' stored states, and what people are told."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import ucfl
from deploy.loopback import people
from ucfl.algorithms import find
from ucfl.deploy import contents
from ucfl.deploy.contact import Plan
from ucfl.deploy.contents import Refused
from ucfl.deploy.keeping import Kept, Store
from ucfl.deploy.processes import address_of, one_user, write_user
from ucfl.deploy.secret_files import (
    KEY,
    checked_name,
    make_certificates,
    make_key,
    read_key,
    read_public_keys,
    read_secret,
)
from ucfl.errors import UcflError


def ucfl_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ucfl", *words],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1", "server.example"])
    private, public = make_key("ada", tmp_path)
    for file in (tmp_path / KEY, private):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_public_keys(tmp_path)["ada"] == public.read_bytes()
    assert read_key(private).curve.name == "secp384r1"
    private.chmod(0o640)
    with pytest.raises(UcflError, match="can be read by others"):
        read_key(private)
    with pytest.raises(UcflError, match="is there already"):
        make_key("ada", tmp_path)
    public.write_text("no key")
    with pytest.raises(UcflError, match="is no public key"):
        read_public_keys(tmp_path)
    with pytest.raises(UcflError, match="cannot be read"):
        read_secret(tmp_path / "none")


@pytest.mark.parametrize("name", ["", "../ada", "a b", "ada/..", ".ada", "a" * 65, "ädä", "a\n"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(UcflError, match="cannot be a user's name"):
        checked_name(name)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:99999", "host:x"])
def test_addresses_are_checked(text: str) -> None:
    with pytest.raises(UcflError, match="HOST:PORT"):
        address_of(text)


def test_a_store_keeps_two_rounds_and_notices_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.newest() is None
    for t in (0, 1, 2):
        store.keep(Kept("run", t, {"theta": torch.full((1, 3), float(t)), "word": "x"}))
    newest, earlier = store.newest("run"), store.newest("run", until=1)
    assert newest is not None
    assert earlier is not None
    assert (newest.round, earlier.round) == (2, 1)
    assert newest.state["word"] == "x"
    assert store.newest("run", until=0) is None
    store.keep(Kept("run", 2, {"theta": torch.zeros(1, 3)}))  # done again: the one before stays
    assert store.newest("run", until=1) is not None
    with pytest.raises(UcflError, match="another run"):
        store.check("other")
    data = bytearray(store.file.read_bytes())
    data[-1] ^= 1
    store.file.write_bytes(data)
    with pytest.raises(UcflError, match="damaged"):
        store.newest()


def test_what_a_stranger_sends_is_checked_before_it_is_read() -> None:
    good = {"row": (torch.float32, (3,))}
    assert torch.equal(contents.checked({"row": torch.ones(3)}, good)["row"], torch.ones(3))
    array = contents.record({"row": torch.ones(3)})["row"]
    array.shape = (4,)
    with pytest.raises(Refused, match="do not fit its shape"):
        contents._tensor("row", array)
    array.shape, array.stype = (3,), "numpy.ndarray"
    with pytest.raises(Refused, match="unknown way"):
        contents._tensor("row", array)
    array.stype, array.dtype = contents.RAW, "object"
    with pytest.raises(Refused, match="unknown way"):
        contents._tensor("row", array)


def test_a_users_file_is_one_users(tmp_path: Path) -> None:
    users = people(2)
    one = one_user(write_user(users, 1, tmp_path / "one"))
    assert torch.equal(
        one.train.inputs, users.select([1]).train.inputs[:, : len(one.train.inputs[0])]
    )
    (tmp_path / "one" / "more.npz").write_bytes((tmp_path / "one" / "data.npz").read_bytes())
    with pytest.raises(UcflError, match="files of 2 users"):
        one_user(tmp_path / "one")
    with pytest.raises(UcflError, match="is no folder"):
        one_user(tmp_path / "none")


def test_a_users_table_may_call_its_target_as_it_likes(tmp_path: Path) -> None:
    """Known mistake: the advice was an option that the command does not have."""
    (tmp_path / "u.csv").write_text("age,level\n" + "3,0\n5,1\n" * 10)
    with pytest.raises(UcflError, match="--target-column COLUMN for ucfl deploy user"):
        one_user(tmp_path)
    assert one_user(tmp_path, "level").classes == 2
    found = ucfl_command("deploy", "user", "--help", COLUMNS="200", TERM="dumb")
    assert "--target-column" in found.stdout


def test_nothing_calls_home() -> None:
    code = (
        "import ucfl.deploy, os; from flwr.supercore import telemetry as t; import json;"
        "print(json.dumps([t.FLWR_TELEMETRY_ENABLED, os.environ['FLWR_DISABLE_UPDATE_CHECK'],"
        "os.environ['FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION']]))"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean, timeout=120
    )
    assert json.loads(found.stdout) == ["0", "1", "1"]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """A command in this process: its exit code, and what it said in one line."""
    from ucfl.cli import main

    def called(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ucfl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(f"{said.out} {said.err}".split())

    return called


Command = Callable[..., tuple[int, str]]


def test_without_flower_one_sentence_says_how_to_install_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "flwr" else real(name)
    )
    code, said = command("deploy", "demo")
    assert code == 2
    assert said.strip() == (
        "ucfl: training between machines needs Flower, which is not installed here; install the "
        "extra flower, as docs/install.md says: pip install 'ucfl[flower]', or in a clone pip "
        "install -e '.[flower]'."
    )


def test_the_demo_is_one_command(command: Command, tmp_path: Path) -> None:
    out, method = tmp_path / "run", "user-centric:streams=2"
    words = ["deploy", "demo", "--algorithm", method, "--users", "4", "--rounds", "2"]
    found = ucfl_command(*words, "--set", "points=400", "--out", str(out), "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    scenario = ucfl.users.find("rotated-mnist").change({"points": 400, "users": 4, "rounds": 2})
    expected = ucfl.compare(scenario, [method], out=tmp_path / "alone", device="cpu").to_json()
    assert set(result) == set(expected)
    assert result["rounds"] == 2
    row, theirs = (one["algorithms"][method] for one in (result, expected))
    assert row.keys() == theirs.keys()
    assert row["traffic"] == theirs["traffic"]
    for who in ("mean", "worst"):
        assert row[who] == pytest.approx(theirs[who], abs=0.1)
    assert f"deploy demo --algorithm {method}" in command("report", str(out), "--text")[1]
    assert "round 2/2" in command("watch", str(out))[1]
    code, said = command("export", "models", str(out), "--to", str(tmp_path / "models"))
    assert code == 2
    assert "machines of their own" in said
    code, said = command("deploy", "demo", "--out", str(out))
    assert code == 2
    assert "--fresh" in said


def test_compressed_links_are_not_deployed() -> None:
    scenario = ucfl.Scenario(uplink="quantise:bits=8")
    with pytest.raises(UcflError, match="simulated only"):
        Plan(scenario, find("fedavg"), seed=0, users=2, deadline=10.0).check()


def test_mistakes_are_one_sentence(command: Command, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    code, said = command("deploy", "demo", "--algorithm", "scaffold", *out)
    assert (code, "scaffold cannot be deployed" in said) == (2, True)
    certificates = tmp_path / "certificates"
    code, said = command("deploy", "server", "--certificates", str(certificates), *out)
    assert (code, "see docs/deploy.md" in said) == (2, True)
    make_certificates(certificates, ["127.0.0.1"])
    given = ("--certificates", str(certificates), "--keys", str(tmp_path / "keys"))
    code, said = command("deploy", "server", *given, *out)
    assert (code, "holds no user's NAME.pub" in said) == (2, True)
    code, said = command(
        "deploy", "server", *given, "--set", "deadline=30", "--set", "system=wired", *out
    )
    assert (code, "give --deadline in seconds" in said) == (2, True)
