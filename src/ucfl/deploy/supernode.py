"""Flower's SuperNode inside a user's process: one app that stays loaded, instead of one a message.

``flower-supernode`` starts a process for every message, which imports PyTorch each time, and asks
for messages every three seconds. This one answers in its own process, and its question is held
open by the server.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ucfl.errors import UcflError

#: Seconds between a node's heartbeats; Flower takes 10 at least, and waits for two of them.
HEARTBEAT = 10.0
#: Seconds between attempts to reach a server that does not answer, at first and at most.
AGAIN = (0.2, 5.0)

#: What a node does with a message: its kind and content, to a content.
Answer = Callable[[str, RecordDict], RecordDict]


class SuperNode:
    """A user's connection to the server, which is made again whenever it is lost."""

    def __init__(self, address: str, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
        self.address, self._public = address, public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            False,
            certificate,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        self._node: Node | None = None
        self._ended = threading.Event()

    def serve(self, answer: Answer, patience: float, said: Callable[[str], None]) -> None:
        """Answer messages until :meth:`end`, or until nobody answers for ``patience`` seconds."""
        heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        heart.start()
        lost, wait = time.monotonic(), AGAIN[0]
        try:
            while not self._ended.is_set():
                try:
                    if self._node is None:
                        self._activate()
                        said(f"connected to {self.address}")
                    self._answer_one(answer)
                    lost, wait = time.monotonic(), AGAIN[0]
                except httpx.HTTPStatusError as error:
                    self._check(error)  # another server process knows us under another number
                except httpx.TransportError as error:
                    _check_certificate(self.address, error)
                    if time.monotonic() - lost > patience:
                        raise UcflError(
                            f"the server {self.address} does not answer for {patience:.0f} "
                            "seconds; see whether it runs, and start this user again."
                        ) from error
                    self._ended.wait(wait)
                    wait = min(2 * wait, AGAIN[1])
        finally:
            self._leave()

    def end(self) -> None:
        """Stop after the message at hand."""
        self._ended.set()

    def _activate(self) -> None:
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)

    def _check(self, error: httpx.HTTPStatusError) -> None:
        """Raise where the server will not have this user; else connect again."""
        if self._node is None:
            raise UcflError(
                f"the server {self.address} refuses this user's key; give the public key to who "
                "runs the server, and start again when it is registered."
            ) from error
        self._node = None

    def _answer_one(self, answer: Answer) -> None:
        """Ask for a message; if there is one, answer it."""
        node = self._node
        found = self._client.PullMessages(PullMessagesRequest(node=node))
        if not found.messages_list:
            return
        bare = message_from_proto(found.messages_list[0])
        message = self._pulled(bare, found.message_object_trees[0])
        began = time.perf_counter()
        try:
            reply = Message(
                answer(message.metadata.message_type, message.content), reply_to=message
            )
        except UcflError as error:
            fault = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
            reply = Message(fault, reply_to=message)
        except Exception as error:  # the server need not wait for who fails
            fault = Error(
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"it failed ({type(error).__name__})"
            )
            self._push(Message(fault, reply_to=message), time.perf_counter() - began)
            raise
        self._push(reply, time.perf_counter() - began)

    def _pulled(self, bare: Message, tree: ObjectTree) -> Message:
        """The message with its content, which the server may then forget."""
        run, contents = bare.metadata.run_id, {}
        for each in iterate_object_tree(tree):
            request = PullObjectRequest(node=self._node, run_id=run, object_id=each.object_id)
            contents[each.object_id] = self._client.PullObject(request).object_content
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._node, run_id=run, message_object_id=tree.object_id
            )
        )
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _push(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            found = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[seconds],
                )
            )
            for key in found.objects_to_push:
                self._client.PushObject(
                    PushObjectRequest(
                        node=self._node,
                        run_id=reply.metadata.run_id,
                        object_id=key,
                        object_content=objects[key].deflate(),
                        session_id=found.session_id,
                    )
                )

    def _beat(self) -> None:
        """Heartbeats, while messages are answered; a lost connection is the other thread's."""
        while not self._ended.wait(0.8 * HEARTBEAT):
            if (node := self._node) is not None:
                request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT)
                try:
                    self._client.SendNodeHeartbeat(request)
                except httpx.HTTPError:
                    continue

    def _leave(self) -> None:
        """Say goodbye, where the server is there to hear it."""
        self._ended.set()
        if self._node is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        client: Any = self._client
        client.close()


def _check_certificate(address: str, error: httpx.TransportError) -> None:
    """Raise where the server is not who it must be: trying again would not help."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate verify failed" in str(error):
        raise UcflError(
            f"the server {address} does not show a certificate that this user trusts; take the "
            "certificate file (ca.pem) from whoever runs the server, and the name in it as address."
        ) from error
