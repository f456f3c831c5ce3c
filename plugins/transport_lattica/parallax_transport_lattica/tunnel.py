"""The streams of a peer: finds a packet's stream, and begins streams opened by other peers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

from parallax_transport_lattica.packet import NO_STREAM, STREAM_BYTES, BadPacket, Kind, Packet, Reply, read_peer
from parallax_transport_lattica.stream import Push, Stream, StreamLost

MOST_STREAMS = 128
"""The most streams at a time; each holds at most about 4 MiB that its receiver has not read."""

Local = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Tunnel:
    """Carries local connections to other peers.

    Only `receive` may be called by any thread: a library calls it with whatever strangers send.
    """

    def __init__(self, push: Push, connect: Callable[[], Awaitable[Local]] | None = None) -> None:
        """Send packets by ``push``; for a stream that a peer opens, make a local connection by ``connect``.

        Without ``connect``, no peer can open a stream.
        """
        self._push = push
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        """Held while streams are looked up and packets are added to them."""
        self._streams: dict[bytes, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_streams(self) -> int:
        """The number of streams that have not ended."""
        return len(self._streams)

    def receive(self, data: bytes) -> Reply:
        """Process a packet of a peer, and return the answer. Never waits, and never raises."""
        try:
            packet = Packet.unpack(data)
            match packet.kind:
                case Kind.PING if packet.stream == NO_STREAM:
                    return Reply.TAKEN
                case Kind.OPEN:
                    return self._admit(packet.stream, read_peer(packet.content))
                case _:
                    return self._add(packet)
        except BadPacket:
            return Reply.BAD

    async def open(self, peer: str, own_peer: str, local: Local) -> None:
        """Carry a local connection to ``peer``, until it ends."""
        stream = Stream(self._push, peer, os.urandom(STREAM_BYTES))
        with self._lock:
            self._streams[stream.name] = stream
        try:
            await stream.open(own_peer)
        except StreamLost:
            self._forget(stream)
            local[1].close()
            return
        await self._carry(stream, local)

    async def drain(self) -> None:
        """Wait until all streams that peers opened have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _admit(self, name: bytes, peer: str) -> Reply:
        with self._lock:
            if name in self._streams:  # the library sends some packets again
                return Reply.TAKEN if self._streams[name].peer == peer else Reply.BAD
            if self._connect is None:
                return Reply.BAD
            if len(self._streams) >= MOST_STREAMS:
                return Reply.BUSY
            stream = self._streams[name] = Stream(self._push, peer, name)
        self._loop.call_soon_threadsafe(self._begin, stream)
        return Reply.TAKEN

    def _add(self, packet: Packet) -> Reply:
        with self._lock:
            if (stream := self._streams.get(packet.stream)) is None:
                return Reply.UNKNOWN
            if packet.kind is Kind.PING:
                return stream.inbox.ask(packet.number)
            reply = stream.inbox.add(packet.number, packet.content, is_last=packet.kind is Kind.END)
        self._loop.call_soon_threadsafe(stream.has_news.set)
        return reply

    def _begin(self, stream: Stream) -> None:
        task = self._loop.create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream) -> None:
        assert self._connect is not None
        try:
            local = await self._connect()
        except OSError:  # the node has stopped
            self._forget(stream)
            return
        await self._carry(stream, local)

    async def _carry(self, stream: Stream, local: Local) -> None:
        def take() -> bytes:
            with self._lock:
                return stream.inbox.take()

        try:
            await stream.carry(*local, take)
        finally:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._streams.pop(stream.name, None)
