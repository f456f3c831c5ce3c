"""The first words on a link, which show that both ends speak the same language."""

from __future__ import annotations

from importlib.metadata import version

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.wire.codec import WIRE_VERSION
from parallax_core.wire.messages import Hello, Welcome


async def greet(channel: Channel, node: str) -> Welcome:
    """Say who we are, over a link that we made; return what the other end says of itself.

    Raises:
        PeerLost: if it does not answer as it should.
    """
    await channel.send(Hello(WIRE_VERSION, node, version("parallax-core")))
    answer = await channel.receive()
    if not isinstance(answer, Welcome):
        raise PeerLost(f"node {channel.peer!r} answered a greeting with a {type(answer).__name__}")
    return answer


async def welcome(channel: Channel, node: str) -> Hello:
    """Answer the greeting of who made a link to us; return what it says of itself.

    Raises:
        PeerLost: if it does not greet, or goes by a name that is not the link's.
    """
    hello = await channel.receive()
    if not isinstance(hello, Hello) or hello.node != channel.peer:
        raise PeerLost(f"node {channel.peer!r} did not greet")
    await channel.send(Welcome(WIRE_VERSION, node, version("parallax-core")))
    return hello
