"""Many who have an allowed key and mean ill: they get little of the memory of a head, and keep nobody out for long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from parallax_core.api import Frame, FrameLimits, PeerLost, TransportPlan, keys_folder
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership import registry as registry_module
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Join
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.message import Hello
from parallax_transport_zmq.parcel import cut_frame
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.transport import MOST_WAITING, ZmqTransport
from tests.support.node_services import equip
from tests.support.zmq_nodes import LOOPBACK, eventually, plan_node, started

NUM_STRANGERS = 256
CREDIT = 16
LIMITS = FrameLimits(header_bytes=2**14, frame_bytes=2**14, buffers=0)
"""Less than core asks for, since all that is sent here is held by this process, too, until it is gone."""
SMALL = cut_frame(Frame(bytes(LIMITS.header_bytes)), 0)
LARGE = cut_frame(Frame(b"x", (bytes(2**18),)), 0)


@contextmanager
def strangers(address: str, count: int) -> Iterator[list[zmq.Socket[bytes]]]:
    """Give so many sockets of ZeroMQ's own, each of which has greeted under a name of its own."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pair = Keyring(keys_folder()).ensure_pair("stranger")
    sockets = []
    for number in range(count):
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        Guard(pair, pair.public).apply(socket)
        socket.connect(address)
        socket.send(Hello(f"stranger-{number}", "far", CREDIT).pack())
        sockets.append(socket)
    try:
        yield sockets
    finally:
        context.destroy(0)


def push(sockets: list[zmq.Socket[bytes]]) -> None:
    """Send as much as may be, and then more."""
    for number, socket in enumerate(sockets):
        for message in SMALL * CREDIT if number % 4 else LARGE:
            with contextlib.suppress(zmq.Again):
                socket.send(message, zmq.NOBLOCK)


async def join_as(name: str, address: str) -> None:
    """Join a head, trying again as a worker does."""
    async with started(plan_node(name)) as near, asyncio.timeout(60):
        while True:
            with contextlib.suppress(PeerLost):
                channel = Channel(await near.connect(address, "far"))
                await greet(channel, name)
                await channel.send(Join("tcp://x:1", (), "here", 0))
                await channel.receive()
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_strangers_hold_little_memory_and_keep_no_worker_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "GREETING_S", 1.0)
    transport = ZmqTransport(TransportPlan(node="far", listen=LOOPBACK, credit=CREDIT, strangers=LIMITS))
    registry = equip(NodeRegistry(transport, "far"))
    await registry.start()
    most = 0
    with strangers(transport.address, NUM_STRANGERS) as sockets:
        await asyncio.to_thread(push, sockets)
        joining = asyncio.create_task(join_as("honest", transport.address))
        async with asyncio.timeout(60):
            while not registry.waiting:
                most = max(most, transport.measure().num_bytes)
                await asyncio.sleep(0.005)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
    await registry.stop()
    assert most <= (MOST_WAITING + registry_module.MOST_GREETINGS) * CREDIT * LIMITS.frame_bytes


@pytest.mark.slow
async def test_strangers_that_nobody_accepts_hold_little() -> None:
    plan = TransportPlan(node="far", listen=LOOPBACK, credit=CREDIT, strangers=LIMITS)
    async with started(plan) as far:
        with strangers(far.address, NUM_STRANGERS) as sockets:
            await asyncio.to_thread(push, sockets)
            await eventually(lambda: far.measure().waiting == MOST_WAITING, 60)
            await eventually(lambda: far.measure().num_bytes > 2**18, 60)
            for _ in range(100):
                assert far.measure().num_bytes <= MOST_WAITING * CREDIT * LIMITS.frame_bytes
                assert far.measure().waiting <= MOST_WAITING
                await asyncio.sleep(0.01)
