from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from parallax_cluster.wire.profile import Probe
from parallax_core.api import Frame, Link, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.tunnel import Tunnel, end_stream
from parallax_core.wire.api_data import MOST_API_DATA, ApiData
from parallax_core.wire.codec import encode
from parallax_core.wire.messages import Message
from tests.unit.node.cluster import soon, until
from tests.unit.wire.make_golden_frames import SAMPLES

CREDIT = 2


@dataclass
class Ends:
    """A tunnel that runs, the link to it, and the stream that it is joined to."""

    tunnel: Tunnel
    running: asyncio.Task[None]
    link: Channel
    raw: Link
    """What the link sends frames over."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@asynccontextmanager
async def tunnelled(first: bytes = b"") -> AsyncIterator[Ends]:
    plan = TransportPlan(node="far", listen="inprocess://", credit=CREDIT)
    far, near = InProcessTransport(plan), InProcessTransport(TransportPlan(node="near", credit=CREDIT))
    await far.start()
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
    inner = await asyncio.open_connection(sock=ours, limit=MOST_API_DATA)
    outer = await asyncio.open_connection(sock=theirs, limit=MOST_API_DATA)
    raw = await near.connect(far.address, "far")
    link = Channel(raw)
    tunnel = Tunnel(Channel(await far.accept(), STRANGERS), *inner)
    running = asyncio.create_task(tunnel.run(first))
    try:
        yield Ends(tunnel, running, link, raw, *outer)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await end_stream(inner[1], 0)
        await end_stream(outer[1], 0)
        await near.stop()
        await far.stop()


async def read_data(link: Channel) -> bytes:
    message = await soon(link.receive())
    assert isinstance(message, ApiData)
    return message.data


async def test_bytes_go_both_ways_in_their_order() -> None:
    async with tunnelled(b"first, ") as ends:
        assert await read_data(ends.link) == b"first, "
        ends.writer.write(b"second")
        assert await read_data(ends.link) == b"second"
        await ends.link.send(ApiData(b"answer "))
        await ends.link.send(ApiData(b"and more"))
        assert await soon(ends.reader.readexactly(15)) == b"answer and more"


async def test_end_of_the_stream_closes_the_link_after_all_bytes() -> None:
    async with tunnelled() as ends:
        ends.writer.write(b"last")
        await ends.writer.drain()
        ends.writer.close()
        assert await read_data(ends.link) == b"last"
        with pytest.raises(PeerLost):
            await soon(ends.link.receive())
        await soon(ends.running)
        assert ends.tunnel.fault is None


async def test_end_of_the_link_leaves_what_came_before() -> None:
    async with tunnelled() as ends:
        await ends.link.send(ApiData(b"last"))
        await ends.link.leave()
        await soon(ends.running)
        assert ends.tunnel.fault is not None
        assert await soon(ends.reader.readexactly(4)) == b"last"


async def test_answer_is_awaited_from_the_request_until_its_first_byte() -> None:
    seen = []
    async with tunnelled() as ends:
        seen.append(ends.tunnel.awaits_answer)
        ends.writer.write(b"request")
        await read_data(ends.link)
        seen.append(ends.tunnel.awaits_answer)
        await ends.link.send(ApiData(b"a"))
        await soon(ends.reader.readexactly(1))
        seen.append(ends.tunnel.awaits_answer)
    assert seen == [False, True, False]


async def test_stream_is_read_only_as_fast_as_the_link_takes_it() -> None:
    most = 2**21
    async with tunnelled() as ends:
        ends.writer.write(bytes(most))  # the tunnel takes what it may; the rest stays here
        transport = ends.writer.transport
        seen = -1

        def is_still() -> bool:
            nonlocal seen
            seen, before = transport.get_write_buffer_size(), seen
            return seen == before and seen < most

        await until(is_still)
        buffered = most - transport.get_write_buffer_size()
        assert buffered <= (CREDIT + 4) * MOST_API_DATA + 2**17, "credit, reader and the buffers of the sockets"
        received = 0
        while received < most:
            received += len(await read_data(ends.link))
        assert received == most


async def test_link_is_read_only_as_fast_as_the_stream_takes_it() -> None:
    num_sent = 0

    async def send_all(link: Channel) -> None:
        nonlocal num_sent
        for _ in range(100):
            await link.send(ApiData(bytes(MOST_API_DATA)))
            num_sent += 1

    async with tunnelled() as ends:
        reading = cast("asyncio.ReadTransport", ends.writer.transport)
        reading.pause_reading()
        sending = asyncio.create_task(send_all(ends.link))
        seen = -1

        def is_still() -> bool:
            nonlocal seen
            seen, before = num_sent, seen
            return seen == before > 0

        await until(is_still)
        assert not sending.done()
        assert num_sent < 20
        reading.resume_reading()
        assert len(await soon(ends.reader.readexactly(100 * MOST_API_DATA))) == 100 * MOST_API_DATA
        await soon(sending)


STRANGE: list[Message] = [SAMPLES["step"], SAMPLES["join"], SAMPLES["hello"], Probe(b"x")]


@pytest.mark.parametrize("message", STRANGE, ids=lambda message: type(message).__name__)
async def test_other_messages_end_the_tunnel(message: Message) -> None:
    async with tunnelled() as ends:
        await ends.link.send(message)
        await soon(ends.running)
        assert ends.tunnel.fault is not None
        assert ends.tunnel.fault.message


@pytest.mark.parametrize("size", [0, MOST_API_DATA + 1])
async def test_data_of_no_allowed_size_ends_the_tunnel(size: int) -> None:
    async with tunnelled() as ends:
        await ends.link.send(ApiData(bytes(size)))
        await soon(ends.running)
        assert ends.tunnel.fault is not None
        assert "is cut off" in ends.tunnel.fault.message


async def test_frames_damaged_at_random_end_the_tunnel_or_are_data() -> None:
    numbers, whole = random.Random(53), encode(ApiData(b"GET / HTTP/1.1\r\n")).header
    outcomes = {"cut off": 0, "taken": 0}
    for _ in range(300):
        header = bytearray(whole)
        for _ in range(numbers.randint(1, 3)):
            header[numbers.randrange(len(header))] = numbers.randrange(256)
        async with tunnelled() as ends:
            await ends.raw.send(Frame(bytes(header[: numbers.randint(1, len(header))])))
            await ends.link.leave()
            await soon(ends.running)
            assert ends.tunnel.fault is not None
            outcomes["cut off" if "is cut off" in ends.tunnel.fault.message else "taken"] += 1
    assert min(outcomes.values()) > 0, outcomes


async def test_stream_is_closed_after_what_was_written_or_at_once_where_that_takes_too_long() -> None:
    for num_bytes, close_s in ((4, 10.0), (2**22, 0.01)):
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        writer.write(bytes(num_bytes))
        await soon(end_stream(writer, close_s))
        assert writer.transport.is_closing()
        assert writer.transport.get_write_buffer_size() == 0
        assert theirs.recv(2**23, socket.MSG_WAITALL if num_bytes == 4 else 0)
        theirs.close()


async def test_stream_is_closed_at_once_if_nobody_waits_for_that() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    writer.write(bytes(2**22))
    ending = asyncio.create_task(end_stream(writer))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert writer.transport.get_write_buffer_size() == 0
    theirs.close()
