"""A server and its users in one process, on loopback, over TLS: users are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from ucfl import algorithms
from ucfl.deploy.contact import Plan
from ucfl.deploy.keeping import Store
from ucfl.deploy.processes import quieten
from ucfl.deploy.secret_files import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    make_certificates,
    make_key,
    read_key,
    read_public_keys,
)
from ucfl.deploy.server import Server
from ucfl.deploy.superlink import SuperLink
from ucfl.deploy.supernode import Answer, SuperNode
from ucfl.deploy.user import User
from ucfl.runs import Run
from ucfl.users import Scenario, Users

#: PyTorch's generator is one for all threads, and users' models are watched for using it.
ONE_AT_A_TIME = threading.Lock()
SCENARIO = Scenario(
    name="loopback", rounds=3, model="mlp", lr=0.1, batch=10, initialisation="he-glorot"
)


def people(count: int = 4, seed: int = 0) -> Users:
    """Users in two groups whose classes have other means."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(2, 3, 6)) * 0.7
    train, validation, test = [], [], []
    for user in range(count):
        splits = []
        for n in (40 + 10 * (user % 3), 20, 20):
            y = rng.integers(0, 3, n)
            x = means[user % 2][y] + rng.normal(size=(n, 6))
            splits.append((x.astype(np.float32), y))
        for part, pair in zip((train, validation, test), splits, strict=True):
            part.append(pair)
    names = [f"user-{place:02d}" for place in range(count)]
    return Users.from_arrays(train, validation, test, classes=3, names=names)


@dataclass
class Loopback:
    """What a test starts: keys and certificates, a served link, users as threads."""

    folder: Path
    link: SuperLink
    port: int
    threads: dict[str, tuple[SuperNode, threading.Thread]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def key(self, name: str, *, registered: bool = True) -> Path:
        """A user's private key, whose public part the server may have."""
        private, public = make_key(name, self.folder / name)
        if registered:
            (self.folder / "keys").mkdir(exist_ok=True)
            self.link.register(name, public.read_bytes())
            public.replace(self.folder / "keys" / public.name)
        return private

    def node(self, key: Path) -> SuperNode:
        trusted = (self.folder / "certificates" / AUTHORITY).read_bytes()
        return SuperNode(f"127.0.0.1:{self.port}", trusted, read_key(key))

    def start(self, name: str, answer: Callable[[SuperNode], Answer], key: Path) -> None:
        """A user who answers so."""
        node = self.node(key)

        def serve() -> None:
            try:
                node.serve(answer(node), 30.0, lambda text: None)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=serve, name=name, daemon=True)
        thread.start()
        self.threads[name] = node, thread

    def start_user(self, name: str, users: Users, **options: object) -> User:
        """A user with its data; it equals a plain simulation, unless it is ``reproducible``."""
        place = users.names.index(name)
        store = Store(self.folder / name / "state")
        user = User(name, users.select([place]), store, **options)  # type: ignore[arg-type]
        key = self.folder / name / f"{name}.key"

        def answer(node: SuperNode) -> Answer:
            user.ended = node.end

            def alone(kind: str, found: RecordDict) -> RecordDict:
                with ONE_AT_A_TIME:
                    return user.answer(kind, found)

            return alone

        self.start(name, answer, key if key.exists() else self.key(name))
        return user

    def stop(self, name: str) -> None:
        """End a user's thread."""
        node, thread = self.threads.pop(name)
        node.end()
        thread.join(20)
        assert not thread.is_alive()

    def server(
        self, algorithm: str, users: int, deadline: float = 30.0, **change: object
    ) -> Server:
        plan = Plan(SCENARIO.change(change), algorithms.find(algorithm), 0, users, deadline, 60.0)
        keys = self.folder / "keys"
        return Server(plan, self.link, lambda: read_public_keys(keys), self.folder / "run")

    def train(self, algorithm: str, users: int, **options: object) -> Run:
        return self.server(algorithm, users, **options).run(resume=False, fresh=False)  # type: ignore[arg-type]


@contextmanager
def loopback(folder: Path) -> Iterator[Loopback]:
    """Everything is ended when this is left."""
    quieten()
    certificates = folder / "certificates"
    if not certificates.exists():
        make_certificates(certificates, ["127.0.0.1"])
    link = SuperLink()
    with link.served("127.0.0.1", 0, certificates / CERTIFICATE, certificates / KEY) as port:
        found = Loopback(folder, link, port)
        try:
            yield found
        finally:
            for name in list(found.threads):
                found.stop(name)
