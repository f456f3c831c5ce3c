"""Carries a client's connection over a link, from a node that joined to the API of its head."""

from __future__ import annotations

import asyncio
import contextlib

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.wire.api_data import MOST_API_DATA, ApiData

CLOSE_S = 30.0
"""Seconds that a client has to read the rest of its answer once the link has ended."""


class Tunnel:
    """Joins a link to a byte stream; each end reads only as fast as the other takes it."""

    def __init__(self, channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._channel = channel
        self._reader = reader
        self._writer = writer
        self.awaits_answer = False
        """Whether the link was sent bytes, and none have come back since."""
        self.fault: PeerLost | None = None
        """How the link ended; None: the stream ended first."""

    async def run(self, first: bytes = b"") -> None:
        """Carry bytes, ``first`` before all others, until the stream or the link ends; the link is closed then."""
        sending = asyncio.create_task(self._send(first))
        receiving = asyncio.create_task(self._receive())
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and not sending.result():  # an answer may still be on its way
                await receiving
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            await self._channel.leave()

    async def _send(self, data: bytes) -> bool:
        """Send until the stream ends; return False if the link ends first."""
        with contextlib.suppress(ConnectionError):
            while data := data or await self._reader.read(MOST_API_DATA):
                self.awaits_answer = True
                try:
                    await self._channel.send(ApiData(data))
                except PeerLost:
                    return False
                data = b""
        return True

    async def _receive(self) -> None:
        """Write to the stream until the link or the stream ends."""
        try:
            while isinstance(message := await self._channel.receive(), ApiData):
                self.awaits_answer = False
                self._writer.write(message.data)
                await self._writer.drain()
            self.fault = PeerLost(f"node {self._channel.peer!r} sent a {type(message).__name__} between data")
        except PeerLost as error:
            self.fault = error
        except ConnectionError:
            return


async def end_stream(writer: asyncio.StreamWriter, close_s: float = CLOSE_S) -> None:
    """Close a stream once what was written has been sent, or after ``close_s`` seconds."""
    writer.close()
    try:
        async with asyncio.timeout(close_s):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
