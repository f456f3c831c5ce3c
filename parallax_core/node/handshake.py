"""The handshake on a new link: names, wire version and the version of the page rules."""

from __future__ import annotations

import logging
from importlib.metadata import version

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.transport import Link, NodeRole
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.pages.version import PAGES_VERSION
from parallax_core.wire.codec import WIRE_VERSION
from parallax_core.wire.messages import Hello, Purpose, Welcome

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
        PeerLost: if the answer is no `Welcome`, or the peer counts pages by other rules.
    """
    await channel.send(Hello(WIRE_VERSION, node, version("parallax-core"), PAGES_VERSION, purpose))
    answer = await channel.receive()
    if not isinstance(answer, Welcome):
        raise PeerLost(f"node {channel.peer!r} answered a greeting with a {type(answer).__name__}")
    check_versions(channel.peer, answer)
    return answer


async def welcome(channel: Channel, node: str) -> Hello:
    """Answer the greeting on a link that a peer made, as the node called ``node``; return the greeting.

    Raises:
        PeerLost: if the peer does not greet, gives another name than the link's, or counts pages by other rules.
    """
    hello = await hear_greeting(channel)
    await answer_greeting(channel, hello, node)
    return hello


async def hear_greeting(channel: Channel) -> Hello:
    """Return the greeting on a link that a peer made, which is not answered yet.

    Raises:
        PeerLost: if the peer does not greet, or gives another name than the link's.
    """
    hello = await channel.receive()
    if not isinstance(hello, Hello) or hello.node != channel.peer:
        raise PeerLost(f"node {channel.peer!r} did not greet")
    return hello


async def answer_greeting(channel: Channel, hello: Hello, node: str) -> None:
    """Answer a greeting, as the node called ``node``.

    Raises:
        PeerLost: if the peer is gone, or counts pages by other rules.
    """
    await channel.send(Welcome(WIRE_VERSION, node, version("parallax-core"), PAGES_VERSION))
    check_versions(channel.peer, hello)


def check_versions(node: str, greeting: Hello | Welcome) -> None:
    """Check that a node counts pages by this version of the rules; otherwise no pipeline of both nodes works.

    Both ends check, so both log the reason.

    Raises:
        PeerLost: if not.
    """
    ours = version("parallax-core")
    if greeting.pages != PAGES_VERSION:
        theirs = (
            f"node {node!r}, with Parallax {greeting.software}, counts pages by version {greeting.pages} of the rules"
        )
        message = f"{theirs}, and this one, with Parallax {ours}, by version {PAGES_VERSION}"
        raise PeerLost(message, "install the same version of Parallax on every node")
    if greeting.software != ours:
        logger.warning("node runs another version of Parallax node=%s theirs=%s ours=%s", node, greeting.software, ours)
