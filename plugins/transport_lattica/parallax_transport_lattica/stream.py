"""A stream of a tunnel: carries one local TCP connection to another peer and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from parallax_transport_lattica.inbox import WINDOW, Inbox
from parallax_transport_lattica.packet import MOST_CONTENT, Kind, Packet, Reply

Push = Callable[[str, bytes], Awaitable[bytes]]
"""Sends a packet to a peer and returns its answer; raises RuntimeError if the peer is not reached."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.25
"""Seconds until a peer that has no room is asked again: doubled each time, up to the longest."""

ANSWER_S = 20.0
"""Seconds after which a peer that does not answer to a packet is lost; lattica itself waits for minutes."""


class StreamLost(ConnectionError):
    """The peer is not reached, or does not know the stream."""


class Stream:
    """One stream, on the event loop; `Tunnel` adds packets to its inbox from other threads."""

    def __init__(self, push: Push, peer: str, name: bytes) -> None:
        self.peer = peer
        self.name = name
        self.inbox = Inbox()
        self.has_news = asyncio.Event()
        self._push = push
        self._number = 0
        self._oldest = 1
        """The number of the first packet that the peer has not taken."""
        self._taken: set[int] = set()
        """The numbers of later packets that it has taken."""
        self._window = asyncio.Semaphore(WINDOW)

    async def open(self, own_peer: str) -> None:
        """Ask the peer to begin the stream; it answers to the peer ``own_peer``.

        Raises:
            StreamLost: if it does not.
        """
        await self._deliver(Packet(Kind.OPEN, self.name, 0, own_peer.encode()))

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Callable[[], bytes]
    ) -> None:
        """Carry data both ways until either end is closed; ``take`` returns the data in the inbox.

        It closes the local connection if the peer ends the stream, or is lost.
        """
        receiving = asyncio.create_task(self._write(writer, take))
        sending = asyncio.create_task(self._send_all(reader))
        try:
            await asyncio.wait([receiving, sending], return_when=asyncio.FIRST_COMPLETED)
            if not self.inbox.is_ended:  # the local end broke, of which the peer is told
                await asyncio.wait([sending])
        finally:
            receiving.cancel()
            sending.cancel()
            await asyncio.gather(receiving, sending, return_exceptions=True)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _send_all(self, reader: asyncio.StreamReader) -> None:
        async with asyncio.TaskGroup() as group:
            with contextlib.suppress(ConnectionError):  # the local end broke: the peer is told of an end
                while data := await reader.read(MOST_CONTENT):
                    await self._send(group, Kind.DATA, data)
            await self._send(group, Kind.END, b"")

    async def _send(self, group: asyncio.TaskGroup, kind: Kind, content: bytes) -> None:
        await self._window.acquire()
        self._number += 1
        number = self._number
        task = group.create_task(self._deliver(Packet(kind, self.name, number, content)))
        task.add_done_callback(lambda _: self._slide(number))

    def _slide(self, number: int) -> None:
        """Let as many packets follow as all before were taken: others would fill the room for early packets."""
        self._taken.add(number)
        while self._oldest in self._taken:
            self._taken.remove(self._oldest)
            self._oldest += 1
            self._window.release()

    async def _deliver(self, packet: Packet) -> None:
        """Send a packet until the peer has taken it; while the peer has no room, only ask whether it has."""
        probe = Packet(Kind.PING, packet.stream, packet.number).pack()
        data, pause_s = packet.pack(), FIRST_PAUSE_S
        while await self._ask(data) is Reply.BUSY:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if packet.kind is Kind.OPEN or await self._ask(probe) is Reply.TAKEN:
                    break

    async def _ask(self, data: bytes) -> Reply:
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = Reply(await self._push(self.peer, data))
        except (RuntimeError, TimeoutError, ValueError) as error:
            raise StreamLost(str(error)) from error
        if reply not in {Reply.TAKEN, Reply.BUSY}:
            raise StreamLost(f"the peer answered {reply.name}")
        return reply

    async def _write(self, writer: asyncio.StreamWriter, take: Callable[[], bytes]) -> None:
        """Write what arrives, in order; close the connection after the last of it."""
        with contextlib.suppress(ConnectionError):  # the other direction ends, too
            while True:
                self.has_news.clear()
                if data := take():
                    writer.write(data)
                    await writer.drain()
                elif self.inbox.is_ended:
                    break
                else:
                    await self.has_news.wait()
        writer.close()
