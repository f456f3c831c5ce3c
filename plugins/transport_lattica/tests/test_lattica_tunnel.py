"""Tunnels between local connections, over a network in memory that does what lattica does, and worse."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from parallax_transport_lattica import stream as stream_module
from parallax_transport_lattica.inbox import WINDOW
from parallax_transport_lattica.packet import MOST_CONTENT, Kind, Packet, Reply
from parallax_transport_lattica.tunnel import MOST_STREAMS, Local, Tunnel

NEAR, FAR = "near", "far"


@dataclass
class Network:
    """Carries packets between two tunnels, late and out of order, and some twice."""

    seed: int = 0
    delay_s: float = 0.0
    tunnels: dict[str, Tunnel] = field(default_factory=dict)
    change: Callable[[bytes], bytes] = bytes
    """Changes packets on their way."""
    num_packets: int = 0
    is_cut: bool = False

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    async def push(self, peer: str, data: bytes) -> bytes:
        """Deliver a packet as lattica's ``call`` does: on another thread, and sometimes again."""
        self.num_packets += 1
        for _ in range(self._rng.choice((1, 1, 2))):
            await asyncio.sleep(self._rng.random() * self.delay_s)
            if self.is_cut:
                raise RuntimeError("RPC call failed")
            reply = await asyncio.to_thread(self.tunnels[peer].receive, self.change(data))
        return bytes(reply)


@dataclass
class Ends:
    """A connection at both ends of a tunnel."""

    near: Local
    far: Local
    network: Network
    carrying: asyncio.Task[None]


@asynccontextmanager
async def connected(network: Network) -> AsyncIterator[Ends]:
    """Make a connection through two tunnels."""
    accepted: asyncio.Queue[Local] = asyncio.Queue()
    here, there = socket.socketpair()
    beyond, served = socket.socketpair()

    async def connect() -> Local:
        await accepted.put(await asyncio.open_connection(sock=served))
        return await asyncio.open_connection(sock=beyond)

    network.tunnels = {NEAR: Tunnel(network.push), FAR: Tunnel(network.push, connect)}
    near = await asyncio.open_connection(sock=here)
    inner = await asyncio.open_connection(sock=there, limit=MOST_CONTENT)
    carrying = asyncio.create_task(network.tunnels[NEAR].open(FAR, NEAR, inner))
    far = await accepted.get()
    try:
        yield Ends(near, far, network, carrying)
    finally:
        for _, writer in (near, far):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        async with asyncio.timeout(20):
            await carrying
            await network.tunnels[FAR].drain()
        assert [tunnel.num_streams for tunnel in network.tunnels.values()] == [0, 0]


async def send(local: Local, data: bytes) -> None:
    local[1].write(data)
    await local[1].drain()


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_arrive_in_order_and_once(seed: int) -> None:
    data = os.urandom(3 * 2**20)
    async with connected(Network(seed, delay_s=0.004)) as ends:
        for source, sink in ((ends.near, ends.far), (ends.far, ends.near)):
            sending = asyncio.create_task(send(source, data))
            async with asyncio.timeout(20):
                assert await sink[0].readexactly(len(data)) == data
            await sending


async def test_end_follows_all_data() -> None:
    data = os.urandom(2**20)
    async with connected(Network(delay_s=0.004)) as ends:
        ends.near[1].write(data)
        ends.near[1].close()
        async with asyncio.timeout(20):
            assert await ends.far[0].read() == data


async def test_receiver_that_reads_nothing_holds_up_its_sender() -> None:
    data = bytes(10 * 2**20)
    async with connected(Network()) as ends:
        sending = asyncio.create_task(send(ends.near, data))
        await asyncio.sleep(0.5)
        before = ends.network.num_packets
        await asyncio.sleep(0.5)
        assert ends.network.num_packets - before < 40 * WINDOW  # questions, with longer and longer pauses
        assert not sending.done()
        async with asyncio.timeout(20):
            assert await ends.far[0].readexactly(len(data)) == data
        await sending


async def test_packets_are_a_window_ahead_of_the_first_that_is_not_taken_at_most() -> None:
    refused, pushed = {1}, set[int]()

    async def push(_: str, data: bytes) -> bytes:
        number = Packet.unpack(data).number
        pushed.add(number)
        return bytes(Reply.BUSY if number in refused else Reply.TAKEN)

    here, there = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=here)
    inner = await asyncio.open_connection(sock=there, limit=MOST_CONTENT)
    carrying = asyncio.create_task(Tunnel(push).open(FAR, NEAR, inner))
    writer.write(bytes(3 * WINDOW * MOST_CONTENT))
    await asyncio.sleep(0.3)
    assert max(pushed) == WINDOW
    refused.clear()
    writer.close()
    async with asyncio.timeout(5):
        await carrying
    assert max(pushed) > 3 * WINDOW


async def test_lost_peer_ends_the_local_connection() -> None:
    async with connected(Network()) as ends:
        ends.network.is_cut = True
        ends.near[1].write(b"x")
        async with asyncio.timeout(5):
            assert await ends.near[0].read() == b""
            await ends.carrying
        ends.far[1].write(b"x")
        async with asyncio.timeout(5):
            assert await ends.far[0].read() == b""


async def test_peer_that_hangs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(Network()) as ends:
        monkeypatch.setattr(stream_module, "ANSWER_S", 0.2)
        ends.network.delay_s = 1000.0
        for _, writer in (ends.near, ends.far):
            writer.write(bytes(2**20))
        async with asyncio.timeout(5):
            assert await ends.near[0].read() == b""
            assert await ends.far[0].read() == b""


async def test_peer_that_does_not_answer_to_an_open_gets_no_data() -> None:
    network = Network(is_cut=True)
    network.tunnels = {NEAR: Tunnel(network.push)}
    here, there = socket.socketpair()
    with here:
        here.sendall(b"secret")
        await network.tunnels[NEAR].open(FAR, NEAR, await asyncio.open_connection(sock=there))
        assert network.num_packets == 1
        assert network.tunnels[NEAR].num_streams == 0


def make_stranger() -> tuple[Tunnel, Network]:
    async def connect() -> Local:
        raise ConnectionRefusedError

    network = Network()
    network.tunnels = {FAR: Tunnel(network.push, connect)}
    return network.tunnels[FAR], network


async def test_stream_that_nobody_opened_is_unknown() -> None:
    tunnel, _ = make_stranger()
    for kind in (Kind.DATA, Kind.END, Kind.PING):
        assert tunnel.receive(Packet(kind, b"s" * 16, 1, b"x").pack()) is Reply.UNKNOWN


async def test_guessed_stream_is_unknown_while_another_is_open() -> None:
    async with connected(Network()) as ends:
        far = ends.network.tunnels[FAR]
        for guess in (bytes(16), os.urandom(16)):
            assert far.receive(Packet(Kind.DATA, guess, 1, b"forged").pack()) is Reply.UNKNOWN
        await send(ends.near, b"mine")
        assert await ends.far[0].readexactly(4) == b"mine"


async def test_packet_that_is_replayed_changes_nothing() -> None:
    heard: list[bytes] = []

    def record(data: bytes) -> bytes:
        heard.append(data)
        return data

    async with connected(Network(change=record)) as ends:
        await send(ends.near, b"one")
        assert await ends.far[0].readexactly(3) == b"one"
        far = ends.network.tunnels[FAR]
        replies = [far.receive(data) for data in heard]
        assert set(replies) == {Reply.TAKEN}
        await send(ends.near, b"two")
        assert await ends.far[0].readexactly(3) == b"two"
    assert {far.receive(data) for data in heard if data[4] != Kind.OPEN} == {Reply.UNKNOWN}


async def test_stream_is_opened_by_one_peer_only() -> None:
    heard: list[bytes] = []

    def record(data: bytes) -> bytes:
        heard.append(data)
        return data

    async with connected(Network(change=record)) as ends:
        await send(ends.near, b"one")
        assert await ends.far[0].readexactly(3) == b"one"
        [name] = {Packet.unpack(data).stream for data in heard}
        assert ends.network.tunnels[FAR].receive(Packet(Kind.OPEN, name, 0, b"other").pack()) is Reply.BAD


async def test_peer_that_only_calls_opens_no_stream_for_others() -> None:
    network = Network()
    tunnel = Tunnel(network.push)
    assert tunnel.receive(Packet(Kind.OPEN, os.urandom(16), 0, b"other").pack()) is Reply.BAD


async def test_strangers_open_a_limited_number_of_streams() -> None:
    tunnel, _ = make_stranger()
    replies = [tunnel.receive(Packet(Kind.OPEN, os.urandom(16), 0, b"other").pack()) for _ in range(MOST_STREAMS + 9)]
    assert replies == [Reply.TAKEN] * MOST_STREAMS + [Reply.BUSY] * 9
    await tunnel.drain()
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        while tunnel.num_streams:  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)
    assert tunnel.receive(Packet(Kind.OPEN, os.urandom(16), 0, b"other").pack()) is Reply.TAKEN


async def test_question_whether_a_peer_lives_is_answered() -> None:
    tunnel, _ = make_stranger()
    assert tunnel.receive(Packet(Kind.PING).pack()) is Reply.TAKEN
