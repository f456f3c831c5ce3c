"""Links whose packets are changed on their way, by somebody who controls the network and all peers in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_core.api import Frame, PeerLost
from parallax_transport_lattica.packet import Kind, Packet
from parallax_transport_lattica.tunnel import Local, Tunnel
from parallax_transport_zmq.link import ZmqLink
from tests.support.zmq_nodes import LOOPBACK, plan_node, started

SECRET = b"hidden states of a prompt"


class Wire:
    """Carries packets between two tunnels; may change what they contain, and lists it."""

    def __init__(self) -> None:
        self.tunnels: dict[str, Tunnel] = {}
        self.is_evil = False
        self.heard: list[bytes] = []

    async def push(self, peer: str, data: bytes) -> bytes:
        packet = Packet.unpack(data)
        content = packet.content
        self.heard.append(content)
        if self.is_evil and packet.kind is Kind.DATA:
            content = content[:-1] + bytes([content[-1] ^ 1])
        return self.tunnels[peer].receive(Packet(packet.kind, packet.stream, packet.number, content).pack())


@asynccontextmanager
async def linked(wire: Wire) -> AsyncIterator[tuple[ZmqLink, ZmqLink]]:
    """Link two nodes of ZeroMQ through two tunnels."""
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        port = int(far.address.rpartition(":")[2])

        async def connect() -> Local:
            return await asyncio.open_connection("127.0.0.1", port)

        async def carry(*local: *Local) -> None:
            await wire.tunnels["near"].open("far", "near", local)

        wire.tunnels = {"near": Tunnel(wire.push), "far": Tunnel(wire.push, connect)}
        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        async with server:
            here = await near.connect(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", "far")
            yield here, await far.accept()
            await near.stop()
            async with asyncio.timeout(10):
                while wire.tunnels["near"].num_streams:  # noqa: ASYNC110 -- there is no event for it
                    await asyncio.sleep(0.01)
                await wire.tunnels["far"].drain()


async def test_packet_that_is_changed_ends_the_link_and_is_not_received() -> None:
    wire = Wire()
    async with linked(wire) as (here, there):
        await here.send(Frame(b"before", (SECRET,)))
        assert (await there.receive()).header == b"before"
        wire.is_evil = True
        await here.send(Frame(b"after", (SECRET,)))
        for link in (here, there):
            with pytest.raises(PeerLost):
                await asyncio.wait_for(link.receive(), 10)


async def test_packets_show_nothing_of_a_frame() -> None:
    wire = Wire()
    async with linked(wire) as (here, there):
        await here.send(Frame(b"x", (SECRET * 1000,)))
        await there.receive()
    carried = b"".join(wire.heard)
    assert len(carried) > 1000 * len(SECRET)
    assert SECRET not in carried
