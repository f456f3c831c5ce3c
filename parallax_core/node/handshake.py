"""The first words on a link, which show that both ends speak the same language, and count alike."""

from __future__ import annotations

import logging
from importlib.metadata import version

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.pages.version import PAGES_VERSION
from parallax_core.wire.codec import WIRE_VERSION
from parallax_core.wire.messages import Hello, Welcome

logger = logging.getLogger(__name__)


async def greet(channel: Channel, node: str) -> Welcome:
    """Say who we are, over a link that we made; return what the other end says of itself.

    Raises:
        PeerLost: if it does not answer as it should, or does not count pages as we do.
    """
    await channel.send(Hello(WIRE_VERSION, node, version("parallax-core"), PAGES_VERSION))
    answer = await channel.receive()
    if not isinstance(answer, Welcome):
        raise PeerLost(f"node {channel.peer!r} answered a greeting with a {type(answer).__name__}")
    check_versions(channel.peer, answer)
    return answer


async def welcome(channel: Channel, node: str) -> Hello:
    """Answer the greeting of who made a link to us; return what it says of itself.

    Raises:
        PeerLost: if it does not greet, goes by a name that is not the link's, or does not count pages as we do.
    """
    hello = await channel.receive()
    if not isinstance(hello, Hello) or hello.node != channel.peer:
        raise PeerLost(f"node {channel.peer!r} did not greet")
    await channel.send(Welcome(WIRE_VERSION, node, version("parallax-core"), PAGES_VERSION))
    check_versions(channel.peer, hello)
    return hello


def check_versions(node: str, said: Hello | Welcome) -> None:
    """Check that a node counts pages as we do: where not, no pipeline of both would ever work. Both ends find out.

    Raises:
        PeerLost: if it does not.
    """
    ours = version("parallax-core")
    if said.pages != PAGES_VERSION:
        theirs = f"node {node!r}, with Parallax {said.software}, counts pages by version {said.pages} of the rules"
        message = f"{theirs}, and this one, with Parallax {ours}, by version {PAGES_VERSION}"
        raise PeerLost(message, "install the same version of Parallax on every node")
    if said.software != ours:
        logger.warning("node runs another version of Parallax node=%s theirs=%s ours=%s", node, said.software, ours)
