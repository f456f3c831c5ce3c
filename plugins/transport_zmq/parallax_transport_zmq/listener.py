"""Accepts links: one socket for all peers that connect, and a link for each.

A connection may say one thing before it is a link: greet, or ask to be admitted by a code. Whatever else it says is not
heard, and it is ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from parallax_core.api import Admission, Data, ParallaxError, TransportPlan
from parallax_transport_zmq.arrivals import Arrivals
from parallax_transport_zmq.connections import WRAP_BYTES, Connection, Connections
from parallax_transport_zmq.enroller import Applicant, Enroller
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import Peer, ZmqLink
from parallax_transport_zmq.message import (
    BadMessage,
    EnrolRequest,
    Hello,
    Kind,
    OtherVersion,
    pack_reason,
    pack_welcome,
)
from parallax_transport_zmq.pump import Pump
from parallax_transport_zmq.target import FAREWELL_S

NO_FILE = -1
MOST_SPENT = 4096
"""The connections without a link that are remembered because nothing more of them is to be heard."""


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
        """Close the connection; posted messages are still sent for a moment. What the peer still says is dropped."""
        self.listener.forget(self.identity)


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Decides which peers may connect."""

    keyring: Keyring
    connections: Connections
    admission: Admission | None = None
    """None: no machine is admitted by a code."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A link, and whose messages are passed on to it."""

    link: ZmqLink
    user: str
    """The key that its peer has proved, as ZeroMQ tells it with each message: a peer chooses its identity."""
    connection: Connection | None
    """None: peers need no key."""

    def hear(self, messages: list[zmq.Frame]) -> None:
        """Pass a message on."""
        if self.connection is not None:
            self.connection.heard += sum(map(len, messages)) + WRAP_BYTES * len(messages)
        if len(messages) == 1:
            self.link.hear(messages[0])
        else:
            self.link.break_off("it sent a message of several parts", "you sent a message of several parts")


class Listener:
    """Greets peers that connect, and passes their messages to their links. Refused peers leave no state behind."""

    def __init__(
        self,
        plan: TransportPlan,
        socket: zmq.Socket[bytes],
        offer: Callable[[ZmqLink], bool],
        check: KeyCheck | None = None,
    ) -> None:
        """Greet as the node of ``plan``, and have peers checked; None: they need no key.

        ``offer`` is called with each link, and returns whether there is room for it.
        """
        self._plan = plan
        self._offer = offer
        self._check = check
        self._enroller = (
            Enroller(check.keyring, check.admission, self._answer)
            if check is not None and check.admission is not None
            else None
        )
        self._links: dict[bytes, Linked] = {}
        """By identity of the connection."""
        self._spent: dict[bytes, None] = {}
        """The identities of connections of which nothing more is heard, the oldest first."""
        self._pump = Pump(socket, self._hear)

    def open_port(self) -> int:
        """Listen at a port of loopback, too, and return it.

        Raises:
            ParallaxError: if that fails, or peers need no key here.
        """
        if self._check is None:
            raise ParallaxError("links over a local socket are not encrypted", "listen at tcp://HOST:PORT")
        try:
            return int(self._pump.bind("tcp://127.0.0.1:*").rpartition(":")[2])
        except ConnectionError as error:
            raise ParallaxError(f"cannot listen on loopback: {error}", "is its network up?") from error

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._enroller is not None:
            self._enroller.close()
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
        """Hear no more of a peer, and end its connection once the last messages to it are sent."""
        self._spend(identity)
        linked = self._links.pop(identity, None)
        if linked is not None and linked.connection is not None and self._check is not None:
            self._check.connections.end_link(linked.connection)

    def _hear(self, parts: list[zmq.Frame]) -> None:
        identity, *messages = parts
        linked = self._links.get(identity.bytes)
        if linked is not None and linked.user == _read_user(messages[0]):
            linked.hear(messages)
        elif linked is None and identity.bytes not in self._spent:
            self._spend(identity.bytes)
            if len(messages) != 1 or not self._greet(identity.bytes, messages[0]):
                self._end(_read_file(messages[0]))

    def _spend(self, identity: bytes) -> None:
        self._spent[identity] = None
        if len(self._spent) > MOST_SPENT:
            del self._spent[next(iter(self._spent))]

    def _end(self, file: int) -> None:
        if self._check is not None and file != NO_FILE:
            self._check.connections.end_stranger(file)

    def _greet(self, identity: bytes, message: zmq.Frame) -> bool:
        """Answer the first message of a connection; return whether it goes on."""
        peer: Peer | Applicant | str
        try:
            if message.bytes[:1] == Kind.ENROL:
                peer = self._enrol(identity, message)
            else:
                peer = self._examine(Hello.unpack(message.bytes), message)
        except OtherVersion as error:
            peer = str(error)
        except BadMessage:
            return False
        try:
            if isinstance(peer, Peer):
                self._admit(identity, peer, message)
            elif isinstance(peer, str):
                self.post(identity, pack_reason(Kind.REFUSE, peer))
        except ConnectionError:  # it is gone already
            self.forget(identity)
        return not isinstance(peer, str)

    def _examine(self, hello: Hello, message: zmq.Frame) -> Peer | str:
        """Return the peer to make a link with, or the reason for refusing it."""
        if hello.receiver != self._plan.node:
            return f"the node here is called {self._plan.node!r}, not {hello.receiver!r}"
        arrivals = Arrivals(message)
        if self._check is None:
            return Peer(hello.sender, hello.credit, arrivals=arrivals)
        key = _read_key(message)
        if (role := self._check.keyring.find_role(key, hello.sender)) is None:
            return f"its key is not one of node {hello.sender!r}"
        return Peer(hello.sender, hello.credit, key, role, arrivals)

    def _enrol(self, identity: bytes, message: zmq.Frame) -> Applicant | str:
        """Queue a machine that has proved the secret of a code for an answer, or return the reason to refuse it.

        Raises:
            BadMessage: if the message is malformed, or of another version.
        """
        request = EnrolRequest.unpack(message.bytes)
        if self._enroller is None:
            return "no machine is admitted by a code here"
        applicant = Applicant(identity, _read_file(message), _read_key(message), request)
        self._enroller.ask(applicant)
        return applicant

    def _answer(self, applicant: Applicant, answer: bytes) -> None:
        """Send an answer, unless it is empty, and end the connection."""
        with contextlib.suppress(ConnectionError):
            if answer:
                self.post(applicant.identity, answer)
        self._end(applicant.file)

    def _admit(self, identity: bytes, peer: Peer, message: zmq.Frame) -> None:
        link = ZmqLink(self._plan, Route(self, identity), peer, self._plan.strangers)
        file, check = _read_file(message), self._check
        connection = check.connections.keep(file) if check is not None and file != NO_FILE else None
        self._links[identity] = Linked(link, _read_user(message), connection)
        self.post(identity, pack_welcome(self._plan.node, self._plan.credit))
        if not self._offer(link):
            link.break_off("too many links wait to be accepted", "too many links wait to be accepted")


def _read_user(message: zmq.Frame) -> str:
    """Return the public key that the sender of a message has proved, in hexadecimal; empty: none was asked for."""
    try:
        return str(message.get("User-Id"))
    except zmq.ZMQError:
        return ""


def _read_key(message: zmq.Frame) -> bytes:
    """Return the public key that the sender of a message has proved."""
    try:
        return bytes.fromhex(_read_user(message))
    except ValueError:
        return b""


def _read_file(message: zmq.Frame) -> int:
    """Return the descriptor of the connection of a message."""
    try:
        return int(message.get(zmq.SRCFD))
    except zmq.ZMQError:
        return NO_FILE
