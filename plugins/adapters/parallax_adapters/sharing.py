"""Offers the adapters of a server to the nodes that have joined it, and sends them what they lack."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from parallax_adapters.messages import (
    PIECE,
    WINDOW,
    AdapterAsk,
    AdapterGone,
    AdapterHeld,
    AdapterOffer,
    AdapterPiece,
    AdapterRoom,
)
from parallax_adapters.room import find_own_room
from parallax_adapters.store import AdapterStore
from parallax_core.api import JoinedPeer, NodeService, PeerLost, ServiceContext, Takers

STALL_S = 30.0
"""Seconds to wait for a sign of a node; then its stages refuse the adapter, if it has any."""

logger = logging.getLogger(__name__)

Outgoing = AdapterOffer | AdapterGone | AdapterAsk | AdapterRoom
"""What is sent to a node; a question stands for its answer."""


class NodeCopies:
    """What a node that has joined has of the adapters."""

    def __init__(self, peer: JoinedPeer, offered: dict[str, bytes]) -> None:
        """Send over the link of ``peer``; ``offered`` are the lists of files of the adapters, by key."""
        self._peer, self._offered = peer, offered
        self._outbox: asyncio.Queue[Outgoing] = asyncio.Queue()
        self._asks = 0
        self._signs = 0
        self._held: dict[str, asyncio.Future[str]] = {}
        self.left = asyncio.Event()
        if (room := find_own_room()).slots:
            self._outbox.put_nowait(AdapterRoom(room.slots, room.rank))
        for key in offered:
            self.offer(key)

    @property
    def takers(self) -> Takers:
        """What takes the messages of the node."""
        return {AdapterAsk: self._take_ask, AdapterHeld: self._take_held}

    def offer(self, key: str) -> None:
        """Offer an adapter to it."""
        self._outbox.put_nowait(AdapterOffer(key, self._offered[key]))

    def withdraw(self, key: str) -> None:
        """End an offer."""
        self._outbox.put_nowait(AdapterGone(key))

    async def hold(self, key: str) -> None:
        """Wait until the node has what it needs of an adapter, or is gone, or gives no sign for long."""
        held = self._held.setdefault(key, asyncio.get_running_loop().create_future())
        self.offer(key)
        leaving = asyncio.ensure_future(self.left.wait())
        waiting: list[asyncio.Future[Any]] = [held, leaving]
        try:
            before = -1
            while not (held.done() or leaving.done()) and before != self._signs:
                before = self._signs
                await asyncio.wait(waiting, timeout=STALL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            self._held.pop(key, None)
        if not self.left.is_set():
            fault = held.result() if held.done() else f"no sign of it for {STALL_S:g} s"
            if fault:
                logger.warning("adapter %s is not on node=%s: %s", key, self._peer.name, fault)

    async def send(self, store: AdapterStore) -> None:
        """Send offers, and pieces from ``store``, until the node is gone."""
        with contextlib.suppress(PeerLost):
            while True:
                message = await self._outbox.get()
                if not isinstance(message, AdapterAsk):
                    await self._peer.channel.send(message)
                    continue
                self._asks -= 1
                await self._peer.channel.send(await self._answer(store, message))

    async def _answer(self, store: AdapterStore, ask: AdapterAsk) -> AdapterPiece:
        data = b""
        if ask.key in self._offered:
            data = await asyncio.to_thread(store.read, ask.key, ask.name, ask.start, PIECE)
        return AdapterPiece(ask.key, ask.name, ask.start, data)

    def _take_ask(self, ask: AdapterAsk) -> None:
        if self._asks >= WINDOW:
            raise PeerLost(f"node {self._peer.name!r} asks for more than {WINDOW} pieces of adapters at once")
        self._asks += 1
        self._signs += 1
        self._outbox.put_nowait(ask)

    def _take_held(self, held: AdapterHeld) -> None:
        self._signs += 1
        if (waiting := self._held.get(held.key)) is not None and not waiting.done():
            waiting.set_result(held.fault)


class AdapterSharing(NodeService):
    """Brings the adapters of a server to all nodes that join it."""

    def __init__(self, make_store: Callable[[], AdapterStore] = AdapterStore) -> None:
        """Send from the store that ``make_store`` returns."""
        self._make_store = make_store
        self._offered: dict[str, bytes] = {}
        self._nodes: list[NodeCopies] = []

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Offer a node all adapters, for as long as its link lasts."""
        node = NodeCopies(peer, self._offered)
        sending = asyncio.create_task(node.send(self._make_store()))
        self._nodes.append(node)
        try:
            yield node.takers
        finally:
            self._nodes.remove(node)
            node.left.set()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def offer(self, key: str, listed: bytes) -> None:
        """Offer an adapter, by its list of files, to all nodes that join from now on."""
        self._offered[key] = listed

    async def spread(self, key: str) -> None:
        """Bring an adapter that is offered to all nodes that have joined."""
        await asyncio.gather(*(node.hold(key) for node in list(self._nodes)))

    def withdraw(self, key: str) -> None:
        """End an offer: nothing uses the adapter any more."""
        if self._offered.pop(key, None) is not None:
            for node in self._nodes:
                node.withdraw(key)


SHARING = AdapterSharing()
"""That of this process."""


def make_sharing(context: ServiceContext) -> NodeService:
    """Return the service of a head."""
    del context
    return SHARING
