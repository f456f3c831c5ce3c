"""Makes the links of a node to others: directly, or over a relay if that takes long.

All ways are tried at once, as in RFC 8305 (Happy Eyeballs), the direct one with a head start; the first link wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from parallax_cluster.node.relay.client import LOCAL, LocalStream, RelayClient, carry
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import RelayPlace, Relays
from parallax_core.api import Link, ParallaxError, PeerLost, Relayable, Transport
from parallax_core.api.node import MOST_API_DATA, RETRY_S, Channel, Path, Paths, TrustedPeers

DIRECT_S = 1.0
"""Seconds for which a direct link is tried where there are relays."""
HEAD_START_S = 0.3
"""Seconds for which a direct link alone is tried."""

logger = logging.getLogger(__name__)


class RelayPaths(Paths):
    """Connects a node to others. Belongs to one event loop."""

    def __init__(self, transport: Transport, node: str) -> None:
        """Connect by ``transport``, as the node called ``node``."""
        super().__init__(transport)
        self._node = node
        self._head: Peer | None = None
        """The head that this node has joined; None: it has joined none."""
        self._clients: dict[RelayPlace, tuple[RelayClient, asyncio.Task[None]]] = {}
        self._streams: set[asyncio.Task[None]] = set()

    @property
    def relays(self) -> tuple[str, ...]:
        """The linked relays over which others can call this node."""
        return tuple(client.name for client, _ in self._clients.values() if client.is_linked)

    @asynccontextmanager
    async def joined(self, head: Peer) -> AsyncIterator[None]:
        """Use the relays that a head names, while this node has joined it."""
        self._head = head
        try:
            yield
        finally:
            self._head = None
            await self._end([task for _, task in self._clients.values()])
            self._clients.clear()
            await self._end(list(self._streams))

    def meet(self, relays: Relays, trusted: TrustedPeers) -> None:
        """Use these relays, in place of those of an earlier call; ``trusted`` keeps their keys."""
        if self._head is None or not isinstance(self._transport, Relayable):
            return
        wanted = [place for place in relays.relays if place.node != self._node]
        trusted.trust("relay", {place.node: place.key for place in wanted if place.address})
        for place in set(self._clients) - set(wanted):
            self._clients.pop(place)[1].cancel()
        for place in wanted:
            if place not in self._clients:
                client = self._make_client(place, self._head)
                self._clients[place] = client, asyncio.create_task(client.run())

    async def reach(self, address: str, node: str) -> Path:
        """Return a link to the node called ``node``: to its ``address``, or over the relay that gets there first.

        Raises:
            PeerLost: if the node is not reached.
            ParallaxError: if the address is invalid, and there is no relay.
        """
        relays = [client for client, _ in self._clients.values()]
        if not relays or node in {client.name for client in relays}:
            return Path(await self._transport.connect(address, node))
        ways = [self._try_directly(address, node), *(self._try_relay(client, node) for client in relays)]
        attempts = [asyncio.create_task(way) for way in ways]
        won: Path | None = None
        try:
            won = await _take_first(attempts)
        finally:
            await _drop(attempts, won)
        if won is None:
            direct, *relayed = (task.exception() for task in attempts)
            assert isinstance(direct, ParallaxError), "another error would have been raised"
            raise PeerLost(f"{direct}; over a relay: {'; '.join(map(str, relayed))}", direct.hint, peer=node)
        return won

    async def _try_directly(self, address: str, node: str) -> Path:
        """Connect within `DIRECT_S`; a head may introduce this node to the other one meanwhile.

        Raises:
            ParallaxError: if that fails.
        """
        last = PeerLost(f"node {node!r} does not answer at {address} within {DIRECT_S:g} s")
        try:
            async with asyncio.timeout(DIRECT_S):
                while True:
                    try:
                        return Path(await self._transport.connect(address, node))
                    except PeerLost as error:
                        last = error
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise last from None

    async def _try_relay(self, client: RelayClient, node: str) -> Path:
        """Connect over a relay, after the head start of the direct way.

        Raises:
            ParallaxError: if that fails.
        """
        await asyncio.sleep(HEAD_START_S)
        try:
            return Path(await self._make_link(await client.reach(node), node), client.name)
        except TimeoutError:
            raise PeerLost(f"the relay {client.name!r} does not answer", peer=node) from None

    async def _make_link(self, channel: Channel, node: str) -> Link:
        """Return the link of the transport over a stream, by a port of loopback that takes one connection.

        Raises:
            PeerLost: if the node does not answer, or this machine has no more ports or files.
        """
        assert isinstance(self._transport, Relayable), "there are relays for such only"
        taken: asyncio.Future[LocalStream] = asyncio.get_running_loop().create_future()

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if taken.done():
                writer.transport.abort()
            else:
                taken.set_result((reader, writer))

        stream = asyncio.create_task(_carry(channel, taken))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)
        try:
            server = await asyncio.start_server(take, LOCAL, 0, limit=MOST_API_DATA, start_serving=False)
            try:
                await server.start_serving()
                return await self._transport.connect_port(server.sockets[0].getsockname()[1], node)
            finally:
                server.close()
        except BaseException as error:
            await self._end([stream])
            await channel.leave()  # the stream may have been ended before it began
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise PeerLost(f"no port of {LOCAL} can be used: {error}", peer=node) from error
            raise

    def _make_client(self, place: RelayPlace, head: Peer) -> RelayClient:
        if place.address:
            return RelayClient(self._transport, self._node, place)
        return RelayClient(self._transport, self._node, RelayPlace(head.node, head.address), "head")

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(channel: Channel, taken: asyncio.Future[LocalStream]) -> None:
    """Carry the connection that is taken over a stream, until either ends."""
    try:
        await carry(channel, await taken)
    finally:
        await channel.leave()


async def _take_first(attempts: Sequence[asyncio.Task[Path]]) -> Path | None:
    """Return the first path that is made, of several at once the first of ``attempts``; None: all fail."""
    waiting: set[asyncio.Task[Path]] = set(attempts)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in attempts:
            if task in done and not isinstance(task.exception(), ParallaxError):
                return task.result()
    return None


async def _drop(attempts: Sequence[asyncio.Task[Path]], used: Path | None) -> None:
    """End all attempts, and close the links that are not used."""
    for task in attempts:
        task.cancel()
    for path in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(path, Path) and path is not used:
            await Channel(path.link).leave()
