"""Flower's SuperLink inside the server's process: nodes, messages and their replies.

``flower-superlink`` also serves its control interface on the port that users reach, and starts a
process for each app. Only its Fleet interface is served here: registered keys, over TLS.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError, ObjectStoreFactory
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from ucfl.errors import UcflError

#: What is refused is said here, a line each.
log = logging.getLogger("ucfl.deploy")
#: Seconds that a node's question for messages is held open where there is none yet.
HELD = 2.0
#: Threads that answer nodes: each node may have one question held open.
THREADS = 256


class LinkState(InMemoryLinkState):
    """Flower's state of nodes and messages, whose readers wait for a change.

    A key that is not registered is told in the log; a node that comes back before its heartbeats
    have run out is activated again, since its key proves who it is.
    """

    def __init__(self) -> None:
        super().__init__(NoOpFederationManager(), ObjectStoreFactory().store())
        self.changed = threading.Condition()
        self.heard: dict[int, float] = {}  # node -> when it last asked for messages
        self.came: dict[int, float] = {}  # node -> when it last connected

    def tell(self) -> None:
        """Wake up who waits for a change."""
        with self.changed:
            self.changed.notify_all()

    def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
        """The node of a key; None, and a line in the log, where nobody registered it."""
        found = super().get_node_id_by_public_key(public_key)
        if found is None:
            log.warning("refused: a node with a key that is not registered (%s)", mark(public_key))
        return found

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """A node is there, for the first time or again."""
        self.deactivate_node(node_id)
        self.came[node_id] = time.monotonic()
        done = super().activate_node(node_id, heartbeat_interval)
        self.tell()
        return done

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        """A node's messages; where there is none, one that comes in the next seconds."""
        self.heard[node_id] = time.monotonic()
        end = time.monotonic() + HELD
        with self.changed:
            while True:
                found = super().get_message_ins(node_id, limit, run_id=run_id)
                left = end - time.monotonic()
                if found or left <= 0:
                    return found
                self.changed.wait(left)

    def store_message_and_object_tree(self, *given: Any, **named: Any) -> tuple[bool, list[str]]:
        """Flower's, and who waits is told."""
        found = super().store_message_and_object_tree(*given, **named)
        self.tell()
        return found

    def store_object(self, *given: Any, **named: Any) -> bool:
        """Flower's, and who waits is told."""
        found = super().store_object(*given, **named)
        self.tell()
        return found


@dataclass(frozen=True)
class Reply:
    """What a user answered: content, or why there is none."""

    user: str
    content: RecordDict | None
    error: str = ""


class SuperLink:
    """Registered users, what is sent to them, and what they answer."""

    def __init__(self) -> None:
        self.state = LinkState()
        self.names: dict[int, str] = {}
        self.nodes: dict[str, int] = {}
        self._waiting: dict[str, str] = {}
        self._run = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        task = self.state.get_run_info(run_ids=[self._run])[0].primary_task_id
        self._task = int(task or 0)
        self.state.claim_task(self._task)
        self.state.activate_task(self._task)
        TaskIdentity.run_id, TaskIdentity.node_id = self._run, SUPERLINK_NODE_ID
        TaskIdentity.task_id = self._task

    def register(self, user: str, public_key: bytes) -> None:
        """Let the holder of a key take part under this name."""
        try:
            node = self.state.create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0, name=user
            )
        except ValueError as error:
            raise UcflError(
                f"the key of {user} is registered for another user too; give each one its own."
            ) from error
        self.names[node], self.nodes[user] = user, node

    def online(self) -> set[str]:
        """Who is connected."""
        self.state.acknowledge_task_heartbeat(self._task)
        return {self.names[node] for node in self.state.get_nodes(self._run)}

    def heard(self, user: str) -> float:
        """When a user last asked for messages (monotonic); a dead or busy one does not."""
        return self.state.heard.get(self.nodes[user], 0.0)

    def came(self, user: str) -> float:
        """When a user last connected (monotonic)."""
        return self.state.came.get(self.nodes[user], 0.0)

    def send(self, contents: Mapping[str, RecordDict], kind: str, seconds: float) -> None:
        """Put a message for each of these users, which is void after so many seconds.

        Records that messages share are stored once.
        """
        for user, each in contents.items():
            message = Message(each, self.nodes[user], kind, ttl=seconds)
            with no_object_id_recompute():
                message.metadata.__dict__["_message_id"] = message.object_id
                tree, objects = get_object_tree(message), get_all_nested_objects(message)
                # The content first: who is told of the message must not find it missing.
                for key in self.state.object_store.preregister(self._run, tree):
                    self.state.object_store.put(key, objects[key].deflate())
                stored = self.state.store_message_ins(remove_content_from_message(message))
            if stored:
                self._waiting[message.metadata.message_id] = user
        self.state.tell()

    def replies(self, until: float) -> Iterator[Reply]:
        """Answers as they come, until everybody has answered or the time (monotonic) is over.

        What is not answered then is taken back: its user is asked anew another time.
        """
        arriving: dict[str, tuple[str, list[str]]] = {}  # reply -> whose, and its objects
        while self._waiting or arriving:
            self.state.acknowledge_task_heartbeat(self._task)
            with self.state.changed:
                found = list(self._arrived(arriving))
                left = until - time.monotonic()
                if not found and left > 0:
                    self.state.changed.wait(min(left, 1.0))
            yield from found
            if left <= 0 and not found:
                break
        self.state.delete_messages(set(self._waiting))
        for message in self._waiting:
            self.state.object_store.delete(message)
        self._waiting.clear()

    def _arrived(self, arriving: dict[str, tuple[str, list[str]]]) -> Iterator[Reply]:
        """Replies that are whole; others are noted in ``arriving``."""
        asked = set(self._waiting)
        for message in self.state.get_message_res(asked, self._run) if asked else ():
            user = self._waiting.pop(message.metadata.reply_to_message_id)
            self.state.delete_messages({message.metadata.reply_to_message_id})
            if message.has_error():
                yield Reply(user, None, str(message.error.reason)[:500])
                continue
            reply = message.metadata.message_id
            try:
                tree = self.state.object_store.get_object_tree(reply)
            except NoObjectInStoreError:
                yield Reply(user, None, "its reply was not kept")
                continue
            arriving[reply] = user, [each.object_id for each in iterate_object_tree(tree)]
        for reply, (user, keys) in list(arriving.items()):
            contents = {key: self.state.get_object(self._run, key) for key in keys}
            if all(contents.values()):
                del arriving[reply]
                yield self._inflated(user, reply, contents)

    def _inflated(self, user: str, reply: str, contents: Mapping[str, bytes | None]) -> Reply:
        self.state.object_store.delete(reply)
        try:
            message = inflate_object_from_contents(reply, dict(contents))  # type: ignore[arg-type]
            assert isinstance(message, Message)
            return Reply(user, message.content)
        except Exception as error:  # whatever a stranger's bytes make of Flower's readers
            return Reply(user, None, f"its reply cannot be read ({type(error).__name__})")

    @contextmanager
    def served(self, host: str, port: int, certificate: Path, key: Path) -> Iterator[int]:
        """Answer nodes at an address, over TLS; gives the port, which is chosen where it is 0."""
        config = uvicorn.Config(
            _app(self.state),
            host=host,
            port=port,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
        )
        config.load()
        assert config.ssl is not None
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        config.ssl.sslobject_class = _Handshake
        server = uvicorn.Server(config)
        thread = threading.Thread(target=_run, args=(server,), name="superlink", daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            thread.join(0.02)
        if not server.started:
            raise UcflError(
                f"the address {host}:{port} cannot be used; another program may have it: give "
                "--address another one."
            )
        try:
            yield int(server.servers[0].sockets[0].getsockname()[1])
        finally:
            server.should_exit = server.force_exit = True
            self.state.tell()
            thread.join(HELD + 5)


def mark(public_key: bytes) -> str:
    """A key's fingerprint, for people to compare."""
    return f"SHA-256 {sha256(public_key).hexdigest()[:16]}"


def _run(server: uvicorn.Server) -> None:
    try:
        server.run()
    except SystemExit:  # uvicorn's, where the address is taken
        server.started = False


def _app(state: LinkState) -> FastAPI:
    """Flower's Fleet interface and nothing else."""

    @contextmanager
    def threads() -> Iterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield

    class Lifespan:
        def __init__(self, _: FastAPI) -> None:
            self.context = threads()

        async def __aenter__(self) -> None:
            self.context.__enter__()

        async def __aexit__(self, *_: object) -> None:
            self.context.__exit__(None, None, None)

    class Factory:
        def state(self) -> LinkState:
            return state

    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=Lifespan,
        middleware=[
            Middleware(_Refusals),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
        ],
    )
    app.state.linkstate_factory = Factory()
    app.state.enable_supernode_auth = True
    app.include_router(router)
    return app


class _Refusals:
    """Who is refused, with the address, in the log."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def seen(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                where = (scope.get("client") or ("unknown", 0))[0]
                log.warning(
                    "refused: %s from %s (HTTP %d)", scope["path"][:80], where, message["status"]
                )
            await send(message)

        await self.app(scope, receive, seen if scope["type"] == "http" else send)


class _Handshake(ssl.SSLObject):
    """The server's side of a connection; a handshake that fails is told in the log."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            plain = error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "HTTPS_PROXY_REQUEST")
            what = "a client without TLS" if plain else "a client whose TLS handshake failed"
            log.warning("refused: %s (%s)", what, error.reason)
            raise
