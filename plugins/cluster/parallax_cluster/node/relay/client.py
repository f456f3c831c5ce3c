"""A node's side of a relay: it can be called over it, and calls others."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from parallax_cluster.wire.relay import NotReached, PickUp, Reach, Reached, RelayPlace, Ring
from parallax_core.api import NodeRole, ParallaxError, PeerLost, Relayable, Transport
from parallax_core.api.node import MOST_API_DATA, Channel, Message, Purpose, Tunnel, end_stream, open_channel

GREETING_S = 5.0
"""Seconds that a relay has to greet."""
REACH_S = 6.0
"""Seconds that a relay has to reach another node: a little more than that one has to answer."""
AGAIN_S = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each attempt to link to a relay again; the last value repeats."""
STEADY_S = 1.0
"""Seconds after which a link to a relay counts as made: one that does not want this node ends it at once."""
MOST_ANSWERED = 64
"""The most streams that others have to this node at the same time over a relay."""
LOCAL = "127.0.0.1"

LocalStream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""A connection of this machine with itself."""

logger = logging.getLogger(__name__)


class RelayClient:
    """Keeps a link to a relay, and makes streams over it. Belongs to one event loop."""

    def __init__(self, transport: Transport, node: str, place: RelayPlace, role: NodeRole = "worker") -> None:
        """Use the relay at ``place``, whose key has to allow ``role``, as the node called ``node``."""
        self._transport = transport
        self._node = node
        self._place = place
        self._role = role
        self._streams: set[asyncio.Task[None]] = set()
        self.is_linked = False
        """Whether others can call this node over the relay now."""

    @property
    def name(self) -> str:
        """The name of the relay's node."""
        return self._place.node

    async def run(self) -> None:
        """Be there for calls, and link to the relay again whenever it is lost, until cancelled."""
        assert isinstance(self._transport, Relayable), "its caller has checked that"
        num_failures = 0
        try:
            port = await self._transport.open_port()
            while True:
                begun = asyncio.get_running_loop().time()
                try:
                    await self._listen(port)
                except (ParallaxError, TimeoutError) as error:
                    logger.debug("no link to the relay node=%s: %s", self.name, error)
                is_steady = self.is_linked and asyncio.get_running_loop().time() - begun > STEADY_S
                num_failures = 0 if is_steady else num_failures + 1
                self.is_linked = False
                await asyncio.sleep(AGAIN_S[min(num_failures, len(AGAIN_S) - 1)])
        except ParallaxError as error:
            logger.warning("no node reaches this one over the relay %s: %s", self.name, error.message)
        finally:
            self.is_linked = False
            for stream in self._streams:
                stream.cancel()
            await asyncio.gather(*self._streams, return_exceptions=True)

    async def reach(self, node: str) -> Channel:
        """Return a stream to a node.

        Raises:
            PeerLost: if the relay or the node is not reached; it says which.
            TimeoutError: if the relay does not answer.
        """
        return await self._open(Reach(node))

    async def _listen(self, port: int) -> None:
        """Pick up calls until the relay is lost."""
        channel = await self._link("relay")
        try:
            self.is_linked = True
            while isinstance(message := await channel.receive(), Ring):
                if len(self._streams) < MOST_ANSWERED:
                    stream = asyncio.create_task(self._answer(message, port))
                    self._streams.add(stream)
                    stream.add_done_callback(self._streams.discard)
            raise PeerLost(f"the relay {self.name!r} sent a {type(message).__name__}")
        finally:
            await channel.leave()

    async def _answer(self, ring: Ring, port: int) -> None:
        """Connect a stream to this node's own port, where the caller proves its identity."""
        with suppress(ParallaxError, TimeoutError, OSError):
            channel = await self._open(PickUp(ring.token))
            try:
                await carry(channel, await asyncio.open_connection(LOCAL, port, limit=MOST_API_DATA))
            finally:
                await channel.leave()

    async def _open(self, first: Message) -> Channel:
        channel = await self._link("stream")
        try:
            async with asyncio.timeout(REACH_S):
                await channel.send(first)
                answer = await channel.receive()
            self._check_reached(answer)
        except BaseException:
            await channel.leave()
            raise
        return channel

    def _check_reached(self, answer: Message) -> None:
        if isinstance(answer, NotReached):
            raise PeerLost(f"the relay {self.name!r} says: {answer.reason}")
        if not isinstance(answer, Reached):
            raise PeerLost(f"the relay {self.name!r} sent a {type(answer).__name__}")

    async def _link(self, purpose: Purpose) -> Channel:
        link = await self._transport.connect(self._place.address, self._place.node)
        async with asyncio.timeout(GREETING_S):
            channel = await open_channel(link, self._node, purpose, self._role)
        channel.learn([Ring, Reached, NotReached])
        return channel


async def carry(channel: Channel, connection: LocalStream) -> None:
    """Carry the bytes of a local connection over a stream, until either ends."""
    try:
        await Tunnel(channel, *connection).run()
    finally:
        await end_stream(connection[1], 0)
