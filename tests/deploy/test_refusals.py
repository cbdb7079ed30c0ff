"""Who is refused is named in the server's log, and training goes on with the others."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import RecordDict

from deploy.loopback import SCENARIO, Loopback, loopback, people
from ucfl.algorithms import find
from ucfl.deploy.contact import Contact, Plan
from ucfl.deploy.contents import Refused, call_of, content, record, tensors_of
from ucfl.deploy.keeping import Store
from ucfl.deploy.processes import take_part, write_user
from ucfl.deploy.protocol import JOIN, MEASURED, METRICS, REFUSED, ROUND, UPLOAD, Joined, said
from ucfl.deploy.roster import Roster
from ucfl.deploy.secret_files import AUTHORITY
from ucfl.deploy.superlink import Reply, SuperLink
from ucfl.deploy.supernode import SuperNode
from ucfl.deploy.user import User
from ucfl.errors import Diverged, UcflError
from ucfl.runs.progress import Progress

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def dishonest(found: Loopback, name: str, change: Change, of: str) -> None:
    """A registered user whose records of one kind are changed before they are sent."""
    users = people()
    user = User(name, users.select([name]), Store(found.folder / name / "state"))

    def answer(node: SuperNode) -> Callable[[str, RecordDict], RecordDict]:
        user.ended = node.end

        def changed(kind: str, asked: RecordDict) -> RecordDict:
            reply = user.answer(kind, asked)
            if of not in reply.array_records:
                return reply
            names = (UPLOAD, MEASURED, METRICS)
            sent = {one: tensors_of(reply, one) for one in names if one in reply.array_records}
            sent[of] = change(sent[of])
            records = {one: record(tensors) for one, tensors in sent.items()}
            return content(call_of(reply), **records)

        return changed

    found.start(name, answer, found.key(name))


def nan(sent: dict[str, Tensor]) -> dict[str, Tensor]:
    row = sent["row"].clone()
    row[3] = torch.nan
    return {"row": row}


CHANGES: dict[str, tuple[Change, str]] = {
    "NaN": (nan, "holds NaN or infinite numbers"),
    "wrong size": (lambda sent: {"row": sent["row"][:-1]}, "has the shape"),
    "double precision": (lambda sent: {"row": sent["row"].double()}, "holds torch.float64"),
    "another name": (lambda sent: {"line": sent["row"]}, "were asked for"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_reply_that_cannot_be_mixed_is_refused(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, why = CHANGES[what]
    users = people()
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        for name in users.names[:3]:
            found.start_user(name, users)
        dishonest(found, "user-03", change, UPLOAD)
        run = found.train("fedavg", 4, rounds=2)
    assert "refused: the answer of user-03" in caplog.text
    assert why in caplog.text
    cohorts = run.checkpoint.cohorts
    assert cohorts[:, :3].all()
    assert not cohorts[:, 3].any()
    assert run.checkpoint.history["test_accuracy"][-1, :3].isfinite().all()


def test_measurements_that_cannot_be_used_leave_their_user_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = people()
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        for name in users.names[:3]:
            found.start_user(name, users)
        dishonest(
            found, "user-03", lambda sent: {**sent, "gradients": sent["gradients"] / 0}, MEASURED
        )
        run = found.train("user-centric", 4, rounds=2)
    assert "refused: the answer of user-03: 'gradients' holds NaN or infinite" in caplog.text
    assert run.names == list(users.names[:3])
    assert run.checkpoint.history["test_accuracy"].isfinite().all()


def test_seconds_that_nobody_asked_for_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = people()
    liar = User("user-03", users.select([3]), Store(tmp_path / "liar" / "state"))

    def answer(node: SuperNode) -> Callable[[str, RecordDict], RecordDict]:
        liar.ended = node.end

        def changed(kind: str, asked: RecordDict) -> RecordDict:
            reply = liar.answer(kind, asked)
            if kind == ROUND:
                reply.config_records["call"]["json"] = json.dumps(
                    call_of(reply) | {"seconds": {"exchange": 1.0}}
                )
            return reply

        return changed

    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        for name in users.names[:3]:
            found.start_user(name, users)
        found.start("user-03", answer, found.key("user-03"))
        run = found.train("fedavg", 4, rounds=1)
    assert "refused: the answer of user-03: its values do not fit: seconds" in caplog.text
    assert run.checkpoint.cohorts.tolist() == [[True, True, True, False]]


class Reconnecting:
    """A link whose only user answers with nothing, and is another process right after."""

    def __init__(self, again: bool) -> None:
        self.again, self.kinds, self.since = again, list[str](), 0.0

    def online(self) -> set[str]:
        return {"a"}

    def came(self, user: str) -> float:
        return self.since

    def send(self, contents: Mapping[str, RecordDict], kind: str, seconds: float) -> None:
        self.kinds += [kind] * len(contents)

    def replies(self, end: float) -> Iterator[Reply]:
        yield Reply("a", None, "it broke")
        if self.again:
            self.since = time.monotonic()


@pytest.mark.parametrize("again", [True, False])
def test_who_comes_back_while_others_answer_is_another_process(again: bool, tmp_path: Path) -> None:
    """Known mistake: it was told the refusal of the process before, and ended."""
    link, plan = Reconnecting(again), Plan(SCENARIO, find("fedavg"), seed=0, users=1, deadline=9.0)
    contact = Contact(plan, cast("SuperLink", link), dict, tmp_path)
    assert contact.asked_to_join({"a"}, cast("Roster", None)) == []
    assert contact.arrived() == ({"a"} if again else set())
    assert link.kinds == ([JOIN] if again else [JOIN, REFUSED])


def test_where_everybody_diverges_the_run_ends_with_a_sentence(tmp_path: Path) -> None:
    users = people()
    with loopback(tmp_path) as found:
        for name in users.names[:2]:
            found.start_user(name, users)
        with pytest.raises(Diverged, match="in round 1: NaN or infinite values"):
            found.train("fedavg", 2, rounds=2, lr=1e30)


def test_a_file_among_the_keys_that_is_none_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys are copied there while the server runs, and half a file is no key yet."""
    users = people()
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        for name in users.names:
            found.start_user(name, users)
        server = found.server("fedavg", 4, rounds=2)
        server.on_round = lambda _: (tmp_path / "keys" / "half.pub").write_text("-----BEGIN")
        assert server.run(resume=False, fresh=False).checkpoint.round == 2
    assert caplog.text.count("half.pub is no public key") == 1


def test_a_folder_that_cannot_be_used_is_told_before_anybody_is_waited_for(tmp_path: Path) -> None:
    users = people()
    with loopback(tmp_path) as found:
        for name in users.names[:2]:
            found.start_user(name, users)
        run = found.train("fedavg", 2, rounds=1)
        before = (run.folder / "checkpoint.safetensors").read_bytes()
        server = found.server("fedavg", 2, rounds=1)
        server.gathered = lambda roster: pytest.fail("users are waited for")  # type: ignore[method-assign]
        with pytest.raises(UcflError, match="holds a run; continue it with --resume"):
            server.run(resume=False, fresh=False)
        with pytest.raises(UcflError, match="give one of them"):
            server.run(resume=True, fresh=True)
        (tmp_path / "begun" / ".run.json-1-ab.unfinished").mkdir(parents=True)
        server.folder = tmp_path / "begun"  # by a process that was killed
        with pytest.raises(pytest.fail.Exception):
            server.run(resume=False, fresh=False)
        server.folder = tmp_path / "keys"
        with pytest.raises(UcflError, match="is not empty and holds no run"):
            server.run(resume=False, fresh=False)
    assert (run.folder / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: {"gradients": sent["gradients"]},
        lambda sent: {**sent, "gradients": sent["gradients"] / 0},
    ],
    ids=["a part is missing", "NaN"],
)
def test_a_late_users_measurements_that_cannot_be_used_leave_it_out_alone(
    change: Change, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = people()

    def come(progress: Progress) -> None:
        if progress.round == 1 and "user-03" not in found.threads:
            dishonest(found, "user-03", change, MEASURED)
            with found.link.state.changed:
                here = found.link.state.changed.wait_for(
                    lambda: "user-03" in found.link.online(), 30
                )
            assert here

    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        for name in users.names[:3]:
            found.start_user(name, users)
        server = found.server("user-centric", 3, rounds=3)
        server.on_round = come
        run = server.run(resume=False, fresh=False)
    assert "refused: the answer of user-03" in caplog.text
    assert run.names == list(users.names[:3])
    assert run.checkpoint.round == 3


def test_another_model_an_unregistered_key_and_no_tls_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = people()
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        stranger = found.node(found.key("stranger", registered=False))
        with pytest.raises(UcflError, match="refuses this user's key"):
            stranger.serve(lambda kind, asked: asked, 5.0, lambda text: None)
        with socket.create_connection(("127.0.0.1", found.port), timeout=10) as plain:
            plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1 200" not in plain.recv(100)
        for name in users.names[:3]:
            found.start_user(name, users)
        found.start_user("user-03", users, model="logistic")
        run = found.train("fedavg", 4, rounds=2)
    assert "refused: a node with a key that is not registered" in caplog.text
    assert "refused: a client without TLS" in caplog.text
    assert "the server trains 'mlp', and user-03 has 'logistic'" in caplog.text
    assert run.checkpoint.cohorts.tolist() == [[True, True, True, False]] * 2


def test_a_registered_key_is_no_use_without_its_private_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who shows another's public key, and signs with its own, is nobody."""
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        theirs = found.node(found.key("ada"))
        mine = found.node(found.key("mallory", registered=False))
        mine._public = theirs._public
        signing = mine._client._interceptors[1]
        signing._public_key_bytes = theirs._public
        threading.Timer(10, mine.end).start()  # or it would be served for ever
        with pytest.raises(UcflError, match="refuses this user's key"):
            mine.serve(lambda kind, asked: asked, 5.0, lambda text: None)
        assert not found.link.online()
    assert "refused: /v1/fleet/activate-node from 127.0.0.1 (HTTP 401)" in caplog.text


def test_a_name_that_is_not_the_keys_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = people()
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        for name in users.names[:2]:
            found.start_user(name, users)
        liar = User("user-00", users.select([3]), Store(tmp_path / "liar" / "state"))
        found.start("user-03", lambda node: liar.answer, found.key("user-03"))
        run = found.train("fedavg", 2, rounds=1)
    assert run.names == ["user-00", "user-01"]
    assert "its key is that of user-03" in caplog.text


def test_who_is_refused_is_told_why_and_may_come_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bob takes Ada's key: his command ends with a sentence, and Ada can still join."""
    users, errors = people(), list[BaseException]()
    with loopback(tmp_path) as found, caplog.at_level(logging.INFO, "ucfl.deploy"):
        key = found.key("user-01")
        data = write_user(users, 0, tmp_path / "bob")

        def come() -> None:
            try:
                take_part(
                    "bob",
                    data=data,
                    address=f"127.0.0.1:{found.port}",
                    certificate=tmp_path / "certificates" / AUTHORITY,
                    key=key,
                    state=tmp_path / "bob" / "state",
                    model=None,
                    device="cpu",
                    reproducible=False,
                    patience=5.0,
                    said=lambda text: None,
                )
            except UcflError as error:
                errors.append(error)
                found.start_user("user-01", users)

        bob = threading.Thread(target=come, daemon=True)
        bob.start()
        found.start_user("user-00", users)
        run = found.server("fedavg", 2, rounds=1).run(resume=False, fresh=False)
        bob.join(10)
    assert str(errors[0]) == (
        f"the server 127.0.0.1:{found.port} refuses bob: it calls itself 'bob', and its key is "
        "that of user-01; mend that, and start this user again."
    )
    assert "refused: the answer of user-01: it calls itself 'bob'" in caplog.text
    assert run.names == ["user-00", "user-01"]


def turn(**change: object) -> RecordDict:
    settings = {
        "run": "r",
        "scenario": SCENARIO.change({"rounds": 1}).model_dump(mode="json"),
        "algorithm": "fedavg",
        "seed": 0,
        "user": 0,
        "classes": 3,
        "tensors": {},
        "initial": "",
    }
    values = {"previous": 0, "present": False, "round": 1, "columns": [], "begin": None}
    return content({**values, "settings": {**settings, **change}})


def test_code_that_the_server_names_is_not_run(tmp_path: Path) -> None:
    user = User("user-00", people().select([0]), Store(tmp_path))
    scenario = SCENARIO.model_dump(mode="json") | {"model": "os:getcwd"}
    with pytest.raises(UcflError, match="start it with --model os:getcwd"):
        user.answer(ROUND, turn(scenario=scenario))
    with pytest.raises(UcflError, match="is not one of ucfl; code that the server names"):
        user.answer(ROUND, turn(algorithm="antigravity:Method"))
    with pytest.raises(UcflError, match="makes another model of 'mlp' than the server"):
        user.answer(ROUND, turn())
    with pytest.raises(UcflError, match="does not know"):
        user.answer("query.shell", turn())
    with pytest.raises(UcflError, match="cannot use the server's message"):
        user.answer(ROUND, content({"round": 1}))


def test_what_several_users_are_sent_is_held_once() -> None:
    link = SuperLink()
    for user in ("a", "b", "c", "d"):
        link.register(user, user.encode())
        assert link.state.activate_node(link.nodes[user], 30.0)
    shared = record({"columns": torch.rand(10_000)})
    link.send({user: content({"to": user}, stream=shared) for user in link.nodes}, ROUND, 60.0)
    held = sum(len(entry.content) for entry in link.state.object_store.store.values())
    assert 40_000 <= held < 50_000
    assert list(link.replies(0.0)) == []  # nobody answers: all is taken back
    assert not len(link.state.object_store)


@pytest.mark.parametrize(
    "claim", [{"classes": 10**8}, {"input_shape": [10**4, 10**4]}, {"target_shape": [10**9]}]
)
def test_sizes_that_no_server_could_hold_are_refused(claim: dict[str, object]) -> None:
    """The server builds a model for what its users claim to have."""
    honest: dict[str, object] = {
        "protocol": 1, "name": "a", "versions": {},
        "sizes": {"train": 1, "validation": 1, "test": 1}, "classes": 10, "input_shape": [28, 28],
        "input_type": "uint8", "target_shape": [],
        "target_type": "int64", "checksum": "", "held": None,
    }  # fmt: skip
    assert said(Joined, honest).classes == 10
    with pytest.raises(Refused, match="do not fit"):
        said(Joined, {**honest, **claim})
