"""Starting the two kinds of process: a server, a user; and all of them on one machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ucfl.deploy.contact import Plan
from ucfl.deploy.keeping import Store
from ucfl.deploy.secret_files import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    PRIVATE,
    make_certificates,
    make_key,
    read_key,
    read_public_keys,
    read_secret,
)
from ucfl.deploy.server import Server
from ucfl.deploy.superlink import SuperLink
from ucfl.deploy.supernode import SuperNode
from ucfl.deploy.user import User
from ucfl.errors import UcflError
from ucfl.runs import Run
from ucfl.runs.loop import OnNote
from ucfl.runs.progress import OnRound
from ucfl.users import SPLITS, Users

#: Seconds that processes have to end by themselves.
ENDING = 15.0


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UcflError(f"an address is HOST:PORT, such as 127.0.0.1:9092, and not {text[:80]!r}.")
    return host.strip("[]"), int(port)


def start_logging() -> None:
    """Our own lines on standard error; of Flower and its web server only what ends them."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    quieten()


def quieten() -> None:
    """Levels of loggers: ours tells what happens."""
    logging.getLogger("ucfl.deploy").setLevel(logging.INFO)
    for name in ("flwr", "uvicorn", "uvicorn.error", "asyncio", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def serve(
    plan: Plan,
    *,
    address: str,
    certificates: Path,
    keys: Path,
    folder: Path,
    resume: bool,
    fresh: bool,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> Run:
    """Run a server until its training is over."""
    plan.check()
    host, port = address_of(address)
    read_secret(certificates / KEY)  # that nobody else can read it
    if not read_public_keys(keys):
        raise UcflError(
            f"{keys} holds no user's NAME.pub; make keys with ucfl deploy key, and put them there."
        )
    link = SuperLink()
    server = Server(plan, link, lambda: read_public_keys(keys), folder, on_round, on_note)
    server.register()  # before anybody is answered
    with link.served(host, port, certificates / CERTIFICATE, certificates / KEY) as found:
        if on_note:
            on_note(f"listening at {host}:{found}")
        return server.run(resume=resume, fresh=fresh)


def take_part(
    name: str,
    *,
    data: Path,
    address: str,
    certificate: Path,
    key: Path,
    state: Path,
    target_column: str | None = None,
    model: str | None,
    device: str,
    reproducible: bool,
    patience: float,
    said: Callable[[str], None],
) -> None:
    """Answer a server's questions for one user until training is over."""
    address_of(address)
    try:
        trusted = certificate.read_bytes()
    except OSError as error:
        raise UcflError(
            f"{certificate} cannot be read ({error.strerror}); take it from who runs the server."
        ) from error
    node = SuperNode(address, trusted, read_key(key))
    store = Store(state)
    mine = one_user(data, target_column)
    user = User(name, mine, store, model, device, reproducible, node.end, said)
    node.serve(user.answer, patience, said)
    if user.refusal:
        raise UcflError(
            f"the server {address} refuses {name}: {user.refusal}; mend that, and start this user "
            "again."
        )


def one_user(data: Path, target_column: str | None = None) -> Users:
    """The one user whose data a folder holds, and the column of a table that it learns."""
    if not data.is_dir():
        raise UcflError(f"{data} is no folder; give one with this user's .npz or .csv file.")
    # Users agree on their classes' numbers.
    users = Users.from_folder(data, target=target_column, renumber=False)
    if len(users) != 1:
        raise UcflError(
            f"{data} holds the files of {len(users)} users; give a folder with one file."
        )
    return users


def write_user(users: Users, place: int, folder: Path) -> Path:
    """One user's data as the file that :func:`one_user` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    for split in SPLITS:
        part = users.split(split)
        n = int(part.sizes[place])
        arrays[f"x_{split}"] = part.inputs[place, :n].numpy()
        arrays[f"y_{split}"] = part.targets[place, :n].numpy()
    np.savez(folder / "data.npz", **arrays)
    return folder


class Processes:
    """A server and its users as processes of this machine, which end together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()

    @property
    def address(self) -> str:
        """On this machine alone."""
        return f"127.0.0.1:{self.port}"

    def prepare(self, users: Users, names: Sequence[str]) -> None:
        """Certificates, and for each user a key and a folder with its data."""
        make_certificates(self.folder / "certificates", ["127.0.0.1", "localhost"])
        for place, name in enumerate(names):
            private, public = make_key(name, self.folder / name)
            (self.folder / "keys").mkdir(exist_ok=True)
            public.replace(self.folder / "keys" / public.name)
            assert private.exists()
            write_user(users, place, self.folder / name / "data")

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """``ucfl deploy …`` in a process group of its own, with its log beside."""
        command = [sys.executable, "-m", "ucfl", "deploy", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self._started[name]

    def start_user(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """A user, from the files that :meth:`prepare` made."""
        place = self.folder / name
        return self.start(
            name, "user", name, "--data", str(place / "data"), "--server", self.address,
            "--certificate", str(self.folder / "certificates" / AUTHORITY),
            "--key", str(place / f"{name}{PRIVATE}"), "--state", str(place / "state"), *options,
        )  # fmt: skip

    def start_server(self, *options: str) -> subprocess.Popen[bytes]:
        """The server, with the files that :meth:`prepare` made."""
        return self.start(
            "server", "server", "--address", self.address,
            "--certificates", str(self.folder / "certificates"),
            "--keys", str(self.folder / "keys"), *options,
        )  # fmt: skip

    def log(self, name: str) -> str:
        """What a process has said so far."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def kill(self, name: str) -> None:
        """``kill -9``."""
        process = self._started.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """End all of them: asked to first, then made to."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._started.values():
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            until = time.monotonic() + ENDING
            for process in self._started.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Processes that have ended when this is left, however it is left."""
    found = Processes(folder)
    try:
        yield found
    finally:
        found.end()


def free_port() -> int:
    """A port of this machine that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
