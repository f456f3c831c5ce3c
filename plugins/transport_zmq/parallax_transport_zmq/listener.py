"""Accepts links: one socket for all peers that connect, and a link for each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from parallax_core.api import Admission, Data, IncompatibleNode, ParallaxError, TransportPlan
from parallax_transport_zmq.arrivals import Arrivals
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import Peer, ZmqLink
from parallax_transport_zmq.message import (
    BadMessage,
    EnrolRequest,
    Hello,
    Kind,
    OtherVersion,
    pack_enrolled,
    pack_reason,
    pack_welcome,
)
from parallax_transport_zmq.pump import Pump
from parallax_transport_zmq.target import FAREWELL_S

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """Carries the messages of a link that another node made."""

    listener: Listener
    identity: bytes

    def post(self, message: Data) -> None:
        """Send without waiting.

        Raises:
            ConnectionError: if the other node is not connected any more.
        """
        self.listener.post(self.identity, message)

    def post_threadsafe(self, message: Data) -> None:
        """Send without waiting, from any thread but the loop's.

        Raises:
            ConnectionError: if the other node is not connected any more.
        """
        self.listener.post_threadsafe(self.identity, message)

    def hang_up(self) -> None:
        """Close the link; ZeroMQ cannot disconnect one peer of several, so its later messages are dropped."""
        self.listener.forget(self.identity)


class Listener:
    """Greets peers that connect, and passes their messages to their links. Refused peers leave no state behind."""

    def __init__(
        self,
        plan: TransportPlan,
        socket: zmq.Socket[bytes],
        keyring: Keyring | None,
        offer: Callable[[ZmqLink], bool],
        admission: Admission | None = None,
    ) -> None:
        self._plan = plan
        self._admission = admission
        """None: no machine is admitted by a code."""
        self._keyring = keyring
        """None: peers need no key."""
        self._offer = offer
        self._links: dict[bytes, ZmqLink] = {}
        self._pump = Pump(socket, self._hear)

    def open_port(self) -> int:
        """Listen at a port of loopback, too, and return it.

        Raises:
            ParallaxError: if that fails, or peers need no key here.
        """
        if self._keyring is None:
            raise ParallaxError("links over a local socket are not encrypted", "listen at tcp://HOST:PORT")
        try:
            return int(self._pump.bind("tcp://127.0.0.1:*").rpartition(":")[2])
        except ConnectionError as error:
            raise ParallaxError(f"cannot listen on loopback: {error}", "is its network up?") from error

    def close(self) -> None:
        """Stop listening."""
        self._pump.close(FAREWELL_S)

    def post(self, identity: bytes, message: Data) -> None:
        """Send a message to a connected peer.

        Raises:
            ConnectionError: if the peer is not connected any more.
        """
        self._pump.send([identity, message])

    def post_threadsafe(self, identity: bytes, message: Data) -> None:
        """Send a message to a connected peer, from any thread but the loop's.

        Raises:
            ConnectionError: if the peer is not connected any more.
        """
        self._pump.send_threadsafe([identity, message])

    def forget(self, identity: bytes) -> None:
        """Ignore further messages of a peer."""
        self._links.pop(identity, None)

    def _hear(self, parts: list[zmq.Frame]) -> None:
        identity, *messages = parts
        link = self._links.get(identity.bytes)
        if link is None:
            if len(messages) == 1:
                self._greet(identity.bytes, messages[0])
        elif len(messages) == 1:
            link.hear(messages[0])
        else:
            link.break_off("it sent a message of several parts", "you sent a message of several parts")

    def _greet(self, identity: bytes, message: zmq.Frame) -> None:
        if message.bytes[:1] == Kind.ENROL:
            with contextlib.suppress(ConnectionError, BadMessage):
                self.post(identity, self._enrol(message))
            return
        try:
            hello = Hello.unpack(message.bytes)
            peer = self._examine(hello, message)
        except OtherVersion as error:
            peer = str(error)
        except BadMessage:
            return
        try:
            if isinstance(peer, str):
                self.post(identity, pack_reason(Kind.REFUSE, peer))
            else:
                self._admit(identity, peer)
        except ConnectionError:  # it is gone already
            self.forget(identity)

    def _examine(self, hello: Hello, message: zmq.Frame) -> Peer | str:
        """Return the peer to make a link with, or the reason for refusing it."""
        if hello.receiver != self._plan.node:
            return f"the node here is called {self._plan.node!r}, not {hello.receiver!r}"
        arrivals = Arrivals(message)
        if self._keyring is None:
            return Peer(hello.sender, hello.credit, arrivals=arrivals)
        key = _read_key(message)
        if (role := self._keyring.find_role(key, hello.sender)) is None:
            return f"its key is not one of node {hello.sender!r}"
        return Peer(hello.sender, hello.credit, key, role, arrivals)

    def _enrol(self, message: zmq.Frame) -> bytes:
        """Admit a machine that has proved the secret of a join code, and return the answer.

        Raises:
            BadMessage: if the message is malformed.
        """
        try:
            request = EnrolRequest.unpack(message.bytes)
            if self._keyring is None or self._admission is None:
                return pack_reason(Kind.REFUSE, "no machine is admitted by a code here")
            _check_versions(self._admission, request.versions)
            key, wanted = request.read()
            if self._keyring.allows(key):
                return pack_enrolled(self._keyring.admit(key, wanted))
            self._admission.admit(_read_key(message), key)
            name = self._keyring.admit(key, wanted)
        except OtherVersion as error:
            return pack_reason(Kind.REFUSE, str(error))
        except IncompatibleNode as error:
            logger.warning("refused a machine of another version: %s", error.message)
            return pack_reason(Kind.INCOMPATIBLE, error.message)
        except (ParallaxError, OSError) as error:
            logger.warning("refused a machine with a join code: %s", error)
            return pack_reason(Kind.REFUSE, error.message if isinstance(error, ParallaxError) else "it has no room")
        logger.info("machine admitted name=%s key=%s", name, key.hex())
        return pack_enrolled(name)

    def _admit(self, identity: bytes, peer: Peer) -> None:
        link = ZmqLink(self._plan, Route(self, identity), peer, self._plan.strangers)
        self._links[identity] = link
        self.post(identity, pack_welcome(self._plan.node, self._plan.credit))
        if not self._offer(link):
            link.break_off("too many links wait to be accepted", "too many links wait to be accepted")


def _check_versions(admission: Admission, versions: bytes) -> None:
    """Check the versions of a machine.

    Raises:
        IncompatibleNode: if this node cannot work with them.
        BadMessage: if they cannot be read.
    """
    try:
        admission.check_versions(versions)
    except ValueError as error:
        raise BadMessage("versions that cannot be read") from error


def _read_key(message: zmq.Frame) -> bytes:
    """Return the public key that the sender of a message has proved."""
    try:
        return bytes.fromhex(str(message.get("User-Id")))
    except (zmq.ZMQError, ValueError):
        return b""
