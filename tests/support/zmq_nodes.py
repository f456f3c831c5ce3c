"""Nodes for the tests of the ZeroMQ transport, and a relay between them that can be slowed or cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from parallax_core.api import FrameLimits, TransportPlan
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.transport import ZmqTransport

LOOPBACK = "tcp://127.0.0.1:0"


def plan_node(node: str, listen: str = "", timeout_s: float = 5.0, limits: FrameLimits | None = None) -> TransportPlan:
    return TransportPlan(node=node, listen=listen, timeout_s=timeout_s, credit=4, limits=limits or FrameLimits())


@asynccontextmanager
async def started(plan: TransportPlan) -> AsyncIterator[ZmqTransport]:
    transport = ZmqTransport(plan)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop()


async def join(near: ZmqTransport, far: ZmqTransport, address: str = "") -> tuple[ZmqLink, ZmqLink]:
    """Link two nodes, the second of which is named ``far``; return the links of ``near`` and ``far``."""
    there, here = await asyncio.gather(far.accept(), near.connect(address or far.address, "far"))
    return here, there


class Wire:
    """A TCP relay that can be slowed, cut silently, and listened to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.flows = asyncio.Event()
        self.flows.set()
        self.bytes_per_s = 0.0
        self.heard = bytearray()
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # let closed transports clean up

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        with contextlib.suppress(ConnectionError), contextlib.closing(sink):
            while data := await source.read(2**15):
                self.heard += data
                await self.flows.wait()
                if self.bytes_per_s:  # by the clock, so that late wake-ups on a busy machine are made up for
                    due = max(due, loop.time() - 0.5) + len(data) / self.bytes_per_s
                    await asyncio.sleep(due - loop.time())
                sink.write(data)
                await sink.drain()


@asynccontextmanager
async def stretched(address: str) -> AsyncIterator[Wire]:
    """Start a relay to ``address``."""
    wire = Wire(int(address.rpartition(":")[2]))
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        await wire.stop()


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until ``condition`` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)


def find_port() -> int:
    """Return a UDP port that no other process uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_tcp_port() -> int:
    """Return a TCP port that no other process uses."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
