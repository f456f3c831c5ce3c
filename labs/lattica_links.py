"""A node with links over the transport ``lattica``; see `labs.lattica_hangs`.

    python -m labs.lattica_links serve ADDRESS [LISTEN]
    python -m labs.lattica_links echo ADDRESS BYTES
    python -m labs.lattica_links beat ADDRESS BYTES
    python -m labs.lattica_links read ADDRESS BYTES

A server sends back each frame of a link, or sends frames without end to a reader. Unless ADDRESS is empty, it makes and
closes links to the node there meanwhile, one after the other, and counts them. ``echo`` sends frames without waiting
for those that come back, as many as the link takes, and ``beat`` ten each second; ``read`` only receives. All count the
frames that come, and check that each is whole and the next in order.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from labs.movement import Progress, claim_output, say
from parallax_core.api import Frame, PeerLost, TransportPlan
from parallax_core.contracts.transport import Link
from parallax_transport_lattica.transport import LatticaTransport

LISTEN = "lattica://127.0.0.1:0"
READER = b"reader"
BEAT_S = 0.1
"""Seconds between two frames of ``beat``."""
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


async def send_all(link: Link, payload: bytes, pause_s: float = 0.0) -> None:
    """Send numbered frames for as long as the link takes them."""
    number = 0
    while True:
        await link.send(Frame(NUMBER.pack(number), (payload,)))
        if pause_s:
            await asyncio.sleep(pause_s)
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


async def serve(address: str, output: TextIO, listen: str = LISTEN) -> None:
    """Be a server, which makes links to another at ``address`` unless that is empty."""
    async with started("server", listen) as transport, asyncio.TaskGroup() as tasks:
        progress = Progress()
        say(output, address=transport.address)
        progress.print_often(output)
        if address:
            tasks.create_task(make_links(transport, address, progress))
        while True:
            tasks.create_task(answer(await transport.accept()))


async def ask(role: str, address: str, num_bytes: int, output: TextIO) -> None:
    """Exchange frames with a server, or only receive them."""
    payload, progress = os.urandom(num_bytes), Progress()
    async with started(f"{role}-{os.getpid()}") as transport, asyncio.TaskGroup() as tasks:
        link = await transport.connect(address, "server")
        say(output, ready=True)
        progress.print_often(output)
        tasks.create_task(receive_all(link, payload, progress))
        if role == "read":
            tasks.create_task(link.send(Frame(READER, (payload,))))
        else:
            tasks.create_task(send_all(link, payload, BEAT_S if role == "beat" else 0.0))


def main() -> None:
    """Run the process, which has to be killed."""
    output = claim_output()
    try:
        match sys.argv[1:]:
            case ["serve", address, *listen]:
                asyncio.run(serve(address, output, *listen))
            case [role, address, num_bytes]:
                asyncio.run(ask(role, address, int(num_bytes), output))
    except Exception as error:  # noqa: BLE001 -- the benchmark tells a person
        say(output, error=repr(error))


if __name__ == "__main__":
    main()
