"""Services of nodes: what a node, or a head, does beside running and assigning stages.

A service exchanges messages of its own over the link between a node and its head, and serves links of its own purposes.
It belongs to one event loop, and never touches a stage.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from parallax_core.base.refs import Ref
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.contracts.transport import NodeRole, Transport

MessageKinds = Sequence[type[ServiceMessage]]


class NodeLink(Protocol):
    """A link that carries messages to another node and back."""

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""

    @property
    def key(self) -> bytes:
        """The key that the peer has proved; empty if its transport has no keys."""

    def learn(self, kinds: MessageKinds, /) -> None:
        """Take these messages as well; others are dropped, and their sender is told."""

    async def send(self, message: Any, /) -> None:  # noqa: ANN401 -- a message of core, or a `ServiceMessage`
        """Send a message, waiting while the receiver has too many unread ones.

        Raises:
            PeerLost: if the peer is gone, or this end is closed.
            ValueError: if the message is larger than it may be.
        """

    async def receive(self) -> Any:  # noqa: ANN401 -- the same
        """Return the next message that nothing else takes.

        Raises:
            PeerLost: if the peer is gone, or has sent an invalid frame.
        """

    async def leave(self) -> None:
        """End the link."""


class JoinedPeer(Protocol):
    """The head that a node has joined, or a node that has joined a head."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def address(self) -> str:
        """Where it listens, in the notation of the transport."""

    @property
    def channel(self) -> NodeLink:
        """The link to it. A service sends over it, and gets messages only by what `NodeService.joined` yields."""


Takers = Mapping[type[ServiceMessage], Callable[[Any], None]]
"""By kind of message: the function that takes it, at once and without waiting. What it raises ends the link."""
NOTHING: Takers = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPurpose:
    """How links of a purpose are served, which other nodes make for it."""

    serve: Callable[[Any], Awaitable[None]]
    """Serves a `NodeLink` until it ends, and leaves it then; cancelled when the node or the head ends."""
    role: NodeRole | None = "worker"
    """The role that the key of the other node must allow; None: ``serve`` checks that itself."""
    must_have_joined: bool = True
    """Whether the other node must have joined; only a head knows that."""
    admits: bool = False
    """Whether its frames may be large from the beginning."""
    limits_itself: bool = False
    """Whether ``serve`` limits the number of its links; otherwise a node serves 16 links of all such purposes at once,
    and 4 of them for one machine."""
    accept: Callable[[Any], None] = lambda _: None
    """Takes a `NodeLink` before its greeting is answered; raises `PeerLost` if the node may not have it."""


class NodeService:
    """The base of services; it does nothing. Override what you need."""

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """How to serve links of purposes of its own, by purpose."""
        return MappingProxyType({})

    @property
    def is_needed(self) -> bool:
        """Whether others rely on it, so that the node does not end at once when it is told to."""
        return False

    def joined(self, peer: JoinedPeer) -> AbstractAsyncContextManager[Takers]:
        """Return a context for the time of a link to a peer; it yields functions that take messages.

        On a node, the peer is the head that it has joined; on a head, each node that has joined. A head does not wait
        in it.
        """
        del peer
        return nullcontext(NOTHING)

    async def run(self) -> None:
        """Run for as long as the node or the head does; cancelled at the end.

        Raises:
            StageLost: if the process of the node has to end, and be replaced.
        """

    async def leave(self) -> None:
        """Prepare for the end of the node, which was asked to leave; it leaves once this returns."""

    async def close(self) -> None:
        """End whatever still runs. Idempotent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeServiceSpec:
    """Offers a service; either side may be missing."""

    name: str
    summary: str
    """One line for ``parallax plugins``."""
    messages: Ref[MessageKinds]
    """All its messages."""
    node: Ref[Callable[[Any], NodeService | None]] | None = None
    """Makes the service of a node from its `ServiceContext`; it may return None."""
    head: Ref[Callable[[Any], NodeService | None]] | None = None
    """Makes the service of a head from its `HeadContext`; it may return None."""
    remedy: str = ""
    """What to do if it cannot be imported, such as the package to install."""


class ServiceContext(Protocol):
    """The node or the head that a service is for."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def transport(self) -> Transport:
        """Its transport, which has started when services run."""


class JoinedMachine(NamedTuple):
    """A machine that has joined, and forwards requests of its own clients."""

    name: str
    key: bytes = b""
    """The key that it has proved; empty if its transport has no keys."""
    may_serve: bool = False
    """Whether its key has the role ``any``, so that it may take over from the server."""


class ClientConnections(Protocol):
    """Answers connections of clients that a service has accepted, as the server answers those to its own address."""

    @property
    def are_answered(self) -> bool:
        """Whether the server answers now; not while it starts or stops."""

    async def answer(self, sock: socket.socket, machine: JoinedMachine) -> None:
        """Answer the client at the other end of a connected socket, and return at once.

        The server owns the socket from now on, and either end closes it to end the connection. Keys, limits, and the
        name of the host are checked as ever. On a server without keys the client is a user, or an administrator if
        ``machine`` may serve.
        """


class HeadContext(ServiceContext, Protocol):
    """The head that a service is for."""

    @property
    def clients(self) -> ClientConnections | None:
        """Answers connections that the service has accepted; None: the server does not listen yet."""
