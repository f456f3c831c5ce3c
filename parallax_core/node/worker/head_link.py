"""Makes the link of a node to a head."""

from __future__ import annotations

import asyncio

from parallax_core.base.errors import ParallaxError, PeerLost, UnusableAddress
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.wire.messages import Welcome

GREETING_S = 10.0
"""Seconds a head may take for the handshake."""


async def connect_head(transport: Transport, address: str, head: str) -> Channel:
    """Return a link to the head called ``head``, which is not greeted yet.

    Raises:
        PeerLost: if no such node answers at ``address`` in time.
        UnusableAddress: if this node cannot connect to ``address``.
    """
    try:
        return Channel(await transport.connect(address, head))
    except PeerLost:
        raise
    except ParallaxError as error:
        raise UnusableAddress(error.message, error.hint) from error


async def greet_head(channel: Channel, node: str) -> Welcome:
    """Greet a head as the node called ``node``, and return its answer.

    Raises:
        IncompatibleNode: if the head runs a version of Parallax with which this node cannot work.
        PeerLost: if it does not answer in time.
    """
    try:
        async with asyncio.timeout(GREETING_S):
            return await greet(channel, node)
    except TimeoutError as error:
        raise PeerLost(f"node {channel.peer!r} did not greet within {GREETING_S:g} s") from error
