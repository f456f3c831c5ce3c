"""The relays of a cluster, as its head knows them: itself if it relays, and nodes that offer to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.relay import (
    MOST_RELAYS,
    MOST_USERS,
    OfferRelay,
    RelayPlace,
    Relays,
    RelayUser,
    RelayUsers,
    Relinked,
)
from parallax_core.api import JoinedPeer, LinkPurpose, NodeService, PeerLost, Takers, name_machine
from parallax_core.api.node import Channel, Message, Purpose, run_in_turns
from parallax_core.node.membership.joined_node import JoinedNode

OFFER_S = 10.0
"""Seconds that a node has to say where it relays."""
SEND_S = 5.0
"""Seconds that a node may take to read of relays."""
SETTLE_S = 0.05
"""Seconds to wait for further changes before all are told."""
MOST_OF_ONE = 2
"""The most relays that one machine offers at the same time."""

logger = logging.getLogger(__name__)


class RelayDirectory(NodeService):
    """Tells all nodes of the relays, and the relays of all nodes. Belongs to one event loop."""

    def __init__(self, node: str, list_joined: Callable[[], Sequence[JoinedNode]]) -> None:
        """Be the directory of the head called ``node``; ``list_joined`` returns the nodes that have joined it."""
        self._node = node
        self._list_joined = list_joined
        self._offers: dict[Channel, RelayPlace] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling: asyncio.Task[None] | None = None
        self._are_offers_new = False
        """Whether there are offers that have changed since nodes were told of them."""
        self.server: RelayServer | None = None
        """The relay of the head itself; None without --relay."""

    @property
    def relays(self) -> tuple[RelayPlace, ...]:
        """All relays, that of the head first."""
        own = [RelayPlace(self._node, "")] if self.server is not None else []
        return tuple([*own, *self._offers.values()][:MOST_RELAYS])

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """How to serve links of relays and their users."""
        purposes = {name: LinkPurpose(serve=partial(self.serve, purpose=name)) for name in ("relay", "stream")}
        return {**purposes, "offer": LinkPurpose(serve=self._take_offer, must_have_joined=False)}

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Tell a node of the relays, and the relays of it, until it is gone."""
        assert isinstance(peer, JoinedNode), "a registry has no others"
        node = peer

        def note_relinked(told: Relinked) -> None:
            node.relay = told.relay

        self.note_join(node)
        try:
            yield {Relinked: note_relinked}
        finally:
            self.note_end()

    async def serve(self, channel: Channel, purpose: Purpose) -> None:
        """Serve a link whose purpose is a relay's, until it ends.

        Raises:
            PeerLost: if it ends, or its node may not have it.
        """
        if purpose == "offer":
            await self._take_offer(channel)
        elif self.server is None:
            await channel.leave()
            raise PeerLost(f"node {channel.peer!r} asked for a relay, but this server was started without --relay")
        else:
            await self.server.serve(channel, purpose)

    def note_join(self, node: JoinedNode) -> None:
        """Tell a node that has joined of the relays, and the relays of it."""
        if self.relays:
            self._tell(node.channel, Relays(self.relays))
        self._tell_soon()

    def note_end(self) -> None:
        """Tell the relays that a node is gone: they no longer trust its key, and its links to them end."""
        self._tell_soon()

    async def close(self) -> None:
        """Stop announcing relays. Idempotent."""
        tasks = [*self._tasks, *([self._telling] if self._telling is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_offer(self, channel: Channel) -> None:
        channel.learn([OfferRelay])
        try:
            channel.check_role("worker")
            async with asyncio.timeout(OFFER_S):
                offer = await channel.receive()
            if not isinstance(offer, OfferRelay) or not offer.address:
                raise PeerLost(f"node {channel.peer!r} does not say where it relays")
            channel.admit()
            await self._make_room(channel)
            self._offers[channel] = RelayPlace(channel.peer, offer.address, channel.key)
            logger.info("relay offered node=%s address=%s", channel.peer, offer.address)
            self._note_offers()
            message = await channel.receive()
            raise PeerLost(f"the relay {channel.peer!r} sent a {type(message).__name__}")
        except TimeoutError as error:
            raise PeerLost(f"node {channel.peer!r} does not say where it relays") from error
        finally:
            if self._offers.pop(channel, None) is not None:
                self._note_offers()
            await channel.leave()

    async def _make_room(self, channel: Channel) -> None:
        """End an earlier offer of the same node.

        Raises:
            PeerLost: if its machine offers too many.
        """
        for other in [other for other in self._offers if other.peer == channel.peer]:
            del self._offers[other]
            await other.leave()
        machine = name_machine(channel.peer)
        if [name_machine(other.peer) for other in self._offers].count(machine) >= MOST_OF_ONE:
            raise PeerLost(f"node {channel.peer!r} is one relay of its machine too many")

    def _note_offers(self) -> None:
        self._are_offers_new = True
        self._tell_soon()

    def _tell_soon(self) -> None:
        """Tell all of everything that changes within a moment at once: one who comes and goes costs little."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        await asyncio.sleep(SETTLE_S)
        joined = self._list_joined()
        if self._are_offers_new:
            self._are_offers_new = False
            relays = Relays(self.relays)
            self._start(run_in_turns(_send(node.channel, relays) for node in joined))
        users = RelayUsers(tuple(RelayUser(node.name, node.channel.key) for node in joined[:MOST_USERS]))
        for channel in self._offers:
            self._tell(channel, users)

    def _tell(self, channel: Channel, message: Message) -> None:
        self._start(_send(channel, message))

    def _start(self, telling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _send(channel: Channel, message: Message) -> None:
    with suppress(PeerLost, TimeoutError):
        async with asyncio.timeout(SEND_S):
            await channel.send(message)
