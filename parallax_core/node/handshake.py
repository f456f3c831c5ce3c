"""The handshake on a new link: names, and the versions of both nodes."""

from __future__ import annotations

import logging

from parallax_core.base.errors import IncompatibleNode, PeerLost
from parallax_core.base.ids import name_machine
from parallax_core.contracts.transport import Link, NodeRole
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.versions import own_versions
from parallax_core.wire.codec import WIRE_VERSION
from parallax_core.wire.messages import Hello, Purpose, Welcome
from parallax_core.wire.versions import SAME_VERSION_HINT, NodeVersions, find_conflict

logger = logging.getLogger(__name__)


async def open_channel(link: Link, node: str, purpose: Purpose, role: NodeRole) -> Channel:
    """Greet over a link that this node made, as the node called ``node``; return its channel.

    Until the peer is admitted, it sends short messages only. If this fails or is cancelled, the link is closed.

    Raises:
        PeerLost: if the key of the peer does not allow ``role``, or as `greet` does.
    """
    channel = Channel(link, STRANGERS)
    try:
        channel.check_role(role)
        await greet(channel, node, purpose)
    except BaseException:
        await channel.leave()
        raise
    return channel


async def greet(channel: Channel, node: str, purpose: Purpose = "") -> Welcome:
    """Greet over a link that this node made, as the node called ``node``; return the peer's answer.

    Raises:
        IncompatibleNode: if the peer runs a version of Parallax with which this node cannot work.
        PeerLost: if the answer is no `Welcome`.
    """
    ours = own_versions()
    await channel.send(Hello(ours.wire, node, ours.software, ours.pages, purpose))
    answer = await channel.receive()
    if not isinstance(answer, Welcome):
        raise PeerLost(f"node {channel.peer!r} answered a greeting with a {type(answer).__name__}")
    channel.is_greeted = True
    check_versions(channel.peer, answer)
    return answer


async def welcome(channel: Channel, node: str) -> Hello:
    """Answer the greeting on a link that a peer made, as the node called ``node``; return the greeting.

    Raises:
        IncompatibleNode: if the peer runs a version of Parallax with which this node cannot work; it is told.
        PeerLost: if the peer does not greet, or gives another name than the link's.
    """
    hello = await hear_greeting(channel, node)
    await answer_greeting(channel, hello, node)
    return hello


async def hear_greeting(channel: Channel, node: str) -> Hello:
    """Return the greeting on a link that a peer made to the node called ``node``, which is not answered yet.

    Raises:
        IncompatibleNode: if it is of another version of the wire format; it is answered, so that the peer knows why.
        PeerLost: if the peer does not greet, or gives another name than the link's.
    """
    channel.greeting = _welcome(node)
    hello = await channel.receive()
    channel.greeting = None
    if not isinstance(hello, Hello) or hello.node != channel.peer:
        raise PeerLost(f"node {channel.peer!r} did not greet")
    return hello


async def answer_greeting(channel: Channel, hello: Hello, node: str) -> None:
    """Answer a greeting, as the node called ``node``.

    Raises:
        IncompatibleNode: if the peer counts pages by other rules.
        PeerLost: if the peer is gone.
    """
    await channel.send(_welcome(node))
    channel.is_greeted = True
    check_versions(channel.peer, hello)


def check_versions(node: str, greeting: Hello | Welcome) -> None:
    """Check that a node counts pages by this version of the rules; otherwise no pipeline of both nodes works.

    Both ends check, so both log the reason.

    Raises:
        IncompatibleNode: if not.
    """
    theirs = NodeVersions(WIRE_VERSION, greeting.software, greeting.pages)
    if conflict := find_conflict(own_versions(), theirs, f"node {node!r}"):
        raise IncompatibleNode(conflict, SAME_VERSION_HINT, peer=node)


class SoftwareNotes:
    """Logs once for each machine that its nodes run another version of Parallax, which can work with this one."""

    def __init__(self) -> None:
        self._noted: dict[str, str] = {}

    def note(self, greeting: Hello | Welcome) -> None:
        """Log the version in a greeting, unless it is this node's or was logged before."""
        machine, theirs, ours = name_machine(greeting.node), greeting.software, own_versions().software
        if self._noted.get(machine, ours) != theirs:
            logger.warning(
                "node runs another version of Parallax node=%s theirs=%s ours=%s", greeting.node, theirs, ours
            )
        self._noted[machine] = theirs


def _welcome(node: str) -> Welcome:
    ours = own_versions()
    return Welcome(ours.wire, node, ours.software, ours.pages)
