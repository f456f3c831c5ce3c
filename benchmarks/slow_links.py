"""Links with a delay and a bandwidth: proxies on loopback, between processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

PIECE_BYTES = 2**14


class Wire(NamedTuple):
    """A direction of a link."""

    delay_s: float
    bandwidth: float
    """Bytes per second."""


def find_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def pass_slowly(port: int, there: Wire, back: Wire) -> AsyncIterator[int]:
    """Forward connections to ``port`` of this machine, each way as slowly as its wire; yield the port to connect to."""
    tasks: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for one, other, wire in ((reader, far_writer, there), (far_reader, writer, back)):
            tasks.add(asyncio.create_task(_forward(one, other, wire)))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
    """Forward data in order: each piece is sent for its size over the bandwidth, and arrives a delay later."""
    loop, sent = asyncio.get_running_loop(), 0.0
    pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await pending.get()
            await asyncio.sleep(due - loop.time())
            writer.write(data)
            if not data:
                writer.close()
                return
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE_BYTES):
            sent = max(sent, loop.time()) + len(data) / wire.bandwidth
            pending.put_nowait((sent + wire.delay_s, data))
    pending.put_nowait((max(sent, loop.time()) + wire.delay_s, b""))
    with contextlib.suppress(ConnectionError):
        await delivering
