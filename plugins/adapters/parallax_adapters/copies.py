"""Fetches the adapters of a head to its node: what the layers of the node's stages need of them.

Stages say from their own threads which layers they have (`LAYERS`), and wait there while one is opened; the pieces
arrive on the event loop of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from parallax_adapters.holds import FileHold
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
from parallax_adapters.room import KeptRoom, find_own_room
from parallax_adapters.store import AdapterStore
from parallax_core.api import (
    MOST_TEXT,
    JoinedPeer,
    LayerRange,
    NodeService,
    ParallaxError,
    PeerLost,
    ServiceContext,
    Takers,
)

PIECE_S = 30.0
"""Seconds that a piece may take to arrive."""
OPENING_S = 600.0
"""Seconds for which a stage that is opened waits for the adapters that are loaded."""
MISSING_S = 20.0
"""Seconds for which a stage that serves waits for an adapter that it lacks against expectation."""


class HasLayers(Protocol):
    """What keeps adapters of some layers in this process."""

    @property
    def layers(self) -> LayerRange:
        """The layers."""

    def prepare(self, key: str, /) -> None:
        """Make ready for an adapter that is here, in any thread."""


class LocalLayers:
    """The layers of this process that take adapters, and the heads from which they get them. Safe for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[HasLayers] = weakref.WeakSet()
        self._heads: list[HeadCopies] = []

    def add(self, holder: HasLayers) -> None:
        """Note that the process has these layers, and wait for the adapters that are loaded, but not on a loop."""
        with self._lock:
            self._holders.add(holder)
            heads = list(self._heads)
        for head in heads:
            _wait(head.loop, head.fetch_all(), OPENING_S)

    def fetch(self, key: str) -> None:
        """Wait for an adapter that a stage needs now; whether it has come, the store tells."""
        with self._lock:
            heads = [head for head in self._heads if head.has(key)]
        for head in heads:
            _wait(head.loop, head.fetch(key), MISSING_S)

    def prepare(self, key: str) -> None:
        """Make ready for an adapter that is here, in another thread than those of stages."""
        with self._lock:
            holders = list(self._holders)
        for holder in holders:
            holder.prepare(key)

    def list_missing(self, store: AdapterStore, key: str) -> list[str]:
        """Return the names of the files of an adapter that this process needs and the machine lacks."""
        with self._lock:
            ranges = [holder.layers for holder in self._holders]
        return list(dict.fromkeys(name for layers in ranges for name in store.list_missing(key, layers)))

    def find_room(self) -> KeptRoom:
        """Return the memory that stages of this process are to keep for adapters: the most that a head asks for."""
        with self._lock:
            return max([find_own_room(), *(head.room for head in self._heads)], key=lambda room: room.slots * room.rank)

    @contextmanager
    def fed_by(self, head: HeadCopies) -> Iterator[None]:
        """Get adapters from a head within the context."""
        with self._lock:
            self._heads.append(head)
        try:
            yield
        finally:
            with self._lock:
                self._heads.remove(head)


LAYERS = LocalLayers()
"""Those of this process."""


class HeadCopies:
    """Copies the adapters of one head. Belongs to one event loop."""

    def __init__(self, peer: JoinedPeer, layers: LocalLayers, make_store: Callable[[], AdapterStore]) -> None:
        """Ask ``peer`` for what ``layers`` need, and keep it in the store that ``make_store`` returns."""
        self._peer, self._layers, self._make_store = peer, layers, make_store
        self.loop = asyncio.get_running_loop()
        self.room = KeptRoom()
        """What its stages are to keep for adapters."""
        self._offered: dict[str, bytes] = {}
        self._pieces: dict[tuple[str, str, int], asyncio.Future[bytes]] = {}
        self._holds: dict[str, FileHold] = {}
        """By key, what keeps copies from other processes of this machine."""
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def takers(self) -> Takers:
        """What takes the messages of the head."""
        return {
            AdapterOffer: self._take_offer,
            AdapterGone: self._take_end,
            AdapterPiece: self._take_piece,
            AdapterRoom: self._take_room,
        }

    def has(self, key: str) -> bool:
        """Whether the head offers an adapter."""
        return key in self._offered

    async def fetch_all(self) -> None:
        """Fetch what is missing of all adapters that the head offers."""
        for key in list(self._offered):
            with contextlib.suppress(ParallaxError):
                await self.fetch(key)

    async def fetch(self, key: str) -> None:
        """Fetch what is missing of an adapter.

        Raises:
            ParallaxError: if that fails.
        """
        async with self._changing:
            if (listed := self._offered.get(key)) is None:
                return
            store, missing = await asyncio.to_thread(self._begin, key, listed)
            if key not in self._holds and store.is_copy(key):
                self._holds[key] = store.hold(key)
            for name in missing:
                chunks = await self._fetch_file(key, name, store.list_files(key)[name].size)
                await asyncio.to_thread(store.put, key, name, chunks)
            await asyncio.to_thread(self._layers.prepare, key)

    async def close(self) -> None:
        """Fetch nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for key in list(self._holds):
            self._holds.pop(key).release()

    def _begin(self, key: str, listed: bytes) -> tuple[AdapterStore, list[str]]:
        store = self._make_store()
        try:
            return store, self._layers.list_missing(store, key)
        except ParallaxError:  # nothing of it is here
            store.begin(key, listed)
            return store, self._layers.list_missing(store, key)

    async def _fetch_file(self, key: str, name: str, size: int) -> list[bytes]:
        found: list[bytes] = []
        coming: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        try:
            for start in range(0, size, PIECE):
                coming.append((start, await self._ask(key, name, start)))
                if len(coming) == WINDOW:
                    found.append(await self._receive(coming))
            while coming:
                found.append(await self._receive(coming))
        finally:
            for start, _ in coming:
                self._pieces.pop((key, name, start), None)
        return found

    async def _ask(self, key: str, name: str, start: int) -> asyncio.Future[bytes]:
        self._pieces[key, name, start] = future = self.loop.create_future()
        await self._peer.channel.send(AdapterAsk(key, name, start))
        return future

    async def _receive(self, coming: deque[tuple[int, asyncio.Future[bytes]]]) -> bytes:
        try:
            async with asyncio.timeout(PIECE_S):
                data = await coming[0][1]
        except TimeoutError as error:
            raise ParallaxError(f"no piece of it has come from {self._peer.name} for {PIECE_S:g} s") from error
        if not data:
            raise ParallaxError(f"{self._peer.name} has it no more")
        coming.popleft()
        return data

    def _take_offer(self, offer: AdapterOffer) -> None:
        self._offered[offer.key] = offer.listed
        self._start(self._answer(offer.key))

    def _take_end(self, end: AdapterGone) -> None:
        if self._offered.pop(end.key, None) is not None:
            self._start(self._remove(end.key))

    def _take_piece(self, piece: AdapterPiece) -> None:
        future = self._pieces.pop((piece.key, piece.name, piece.start), None)
        if future is not None and not future.done():
            future.set_result(piece.data)

    def _take_room(self, room: AdapterRoom) -> None:
        self.room = KeptRoom(room.slots, room.rank)

    async def _answer(self, key: str) -> None:
        fault = ""
        try:
            await self.fetch(key)
        except ParallaxError as error:
            fault = error.message[:MOST_TEXT]
        with contextlib.suppress(PeerLost):
            await self._peer.channel.send(AdapterHeld(key, fault))

    async def _remove(self, key: str) -> None:
        async with self._changing:
            if key not in self._offered:
                if (hold := self._holds.pop(key, None)) is not None:
                    hold.release()
                await asyncio.to_thread(self._make_store().remove_copy, key)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := self.loop.create_task(work))
        task.add_done_callback(self._tasks.discard)


class AdapterCopies(NodeService):
    """Fetches the adapters of the heads that a node joins."""

    def __init__(self, layers: LocalLayers, make_store: Callable[[], AdapterStore] = AdapterStore) -> None:
        """Fetch what ``layers`` need into the store that ``make_store`` returns."""
        self._layers, self._make_store = layers, make_store

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Fetch from a head, for as long as its link lasts."""
        head = HeadCopies(peer, self._layers, self._make_store)
        with self._layers.fed_by(head):
            try:
                yield head.takers
            finally:
                await head.close()

    async def run(self) -> None:
        """Remove what was left of earlier copies."""
        await asyncio.to_thread(self._make_store().expire)
        await asyncio.Event().wait()


def make_copies(context: ServiceContext) -> NodeService:
    """Return the service of a node."""
    del context
    return AdapterCopies(LAYERS)


def _wait(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], most_s: float) -> None:
    """Wait for work on another thread's loop; on a loop itself, nothing can."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        work.close()
        return
    found: Future[None] = asyncio.run_coroutine_threadsafe(work, loop)
    with contextlib.suppress(ParallaxError, TimeoutError, CancelledError):
        found.result(most_s)
