"""A node with links over the transport ``lattica``; see `benchmarks.lattica_hangs`.

    python -m benchmarks.lattica_links serve ADDRESS
    python -m benchmarks.lattica_links echo ADDRESS BYTES
    python -m benchmarks.lattica_links read ADDRESS BYTES

A server sends back each frame of a link, or sends frames without end to a reader. Unless ADDRESS is empty, it makes and
closes links to the node there meanwhile, one after the other, and counts them. ``echo`` sends frames without waiting
for those that come back, as many as the link takes; ``read`` only receives. Both count the frames that come, and check
that each is whole and the next in order.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from benchmarks.movement import Progress, claim_output, say
from parallax_core.api import Frame, PeerLost, TransportPlan
from parallax_core.contracts.transport import Link
from parallax_transport_lattica.transport import LatticaTransport

LISTEN = "lattica://127.0.0.1:0"
READER = b"reader"
NUMBER = struct.Struct("!Q")


@asynccontextmanager
async def started(node: str, listen: str = "") -> AsyncIterator[LatticaTransport]:
    """Yield a transport while it is started."""
    transport = LatticaTransport(TransportPlan(node=node, listen=listen, timeout_s=8.0))
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop()


async def send_all(link: Link, payload: bytes) -> None:
    """Send numbered frames for as long as the link takes them."""
    number = 0
    while True:
        await link.send(Frame(NUMBER.pack(number), (payload,)))
        number += 1


async def receive_all(link: Link, payload: bytes, progress: Progress) -> None:
    """Count the frames that come, and check them."""
    while True:
        frame = await link.receive()
        right = frame.header == NUMBER.pack(progress.count) and bytes(frame.buffers[0]) == payload
        progress.add(in_order=right)


async def answer(link: Link) -> None:
    """Send back what comes over a link, or frames without end."""
    try:
        while True:
            frame = await link.receive()
            if frame.header == READER:
                await send_all(link, bytes(frame.buffers[0]))
            await link.send(frame)
    except PeerLost:
        await link.close()


async def make_links(transport: LatticaTransport, address: str, progress: Progress) -> None:
    """Make and close links, one after the other; each carries a frame there and back."""
    while True:
        link = await transport.connect(address, "server")
        await link.send(Frame(b"hello"))
        await link.receive()
        await link.close()
        progress.add()


async def serve(address: str, output: TextIO) -> None:
    """Be a server, which makes links to another at ``address`` unless that is empty."""
    async with started("server", LISTEN) as transport, asyncio.TaskGroup() as tasks:
        progress = Progress()
        say(output, address=transport.address)
        progress.print_often(output)
        if address:
            tasks.create_task(make_links(transport, address, progress))
        while True:
            tasks.create_task(answer(await transport.accept()))


async def ask(address: str, num_bytes: int, output: TextIO, *, is_reader: bool) -> None:
    """Exchange frames with a server, or only receive them."""
    payload, progress = os.urandom(num_bytes), Progress()
    async with started("reader" if is_reader else "asker") as transport, asyncio.TaskGroup() as tasks:
        link = await transport.connect(address, "server")
        say(output, ready=True)
        progress.print_often(output)
        tasks.create_task(receive_all(link, payload, progress))
        tasks.create_task(link.send(Frame(READER, (payload,))) if is_reader else send_all(link, payload))


def main() -> None:
    """Run the process, which has to be killed."""
    output = claim_output()
    try:
        match sys.argv[1:]:
            case ["serve", address]:
                asyncio.run(serve(address, output))
            case [role, address, num_bytes]:
                asyncio.run(ask(address, int(num_bytes), output, is_reader=role == "read"))
    except Exception as error:  # noqa: BLE001 -- the benchmark tells a person
        say(output, error=repr(error))


if __name__ == "__main__":
    main()
