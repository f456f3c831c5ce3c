from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress

import pytest
import zmq

from parallax_core.api import Frame, FrameLimits, PeerLost, TransportPlan, keys_folder
from parallax_transport_zmq import transport as transport_module
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.message import VERSION, Hello, Kind, pack_taken
from parallax_transport_zmq.parcel import CHUNK_BYTES, SMALL_BYTES, Parcel, cut_frame
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.transport import MOST_WAITING, MOST_WAITING_OF_ONE, STOP_S, ZmqTransport
from tests.support.zmq_nodes import LOOPBACK, eventually, join, plan_node, started, stretched

LIMITS = FrameLimits(header_bytes=2**17, frame_bytes=2**25, buffers=16)


@asynccontextmanager
async def spoken(address: str) -> AsyncIterator[zmq.Socket[bytes]]:
    """Give a socket of ZeroMQ's own that is connected to a node of this user, without the transport."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 1000
    pair = Keyring(keys_folder()).ensure_pair("near")
    Guard(pair, pair.public).apply(socket)
    socket.connect(address)
    try:
        yield socket
    finally:
        context.destroy(1000)


async def hear(socket: zmq.Socket[bytes]) -> bytes:
    """Return the next message that is not a heartbeat."""
    async with asyncio.timeout(10):
        while True:
            with suppress(zmq.Again):
                if (message := socket.recv(zmq.NOBLOCK))[:1] != Kind.BEAT:
                    return message
            await asyncio.sleep(0.005)


async def greet(socket: zmq.Socket[bytes], far: ZmqTransport, credit: int = 4) -> ZmqLink:
    """Have a node make a link to such a socket."""
    socket.send(Hello("near", "far", credit).pack())
    link = await far.accept()
    assert (await hear(socket))[:1] == Kind.WELCOME
    return link


SIZES = [(1, []), (5, [0]), (64, [SMALL_BYTES]), (SMALL_BYTES + 1, [1]), (9, [SMALL_BYTES] * 6), (9, [CHUNK_BYTES])]


@pytest.mark.parametrize(("header", "buffers"), [*SIZES, (9, [3, CHUNK_BYTES + 1, 0, 2 * CHUNK_BYTES, 7])])
def test_frame_is_put_together_as_it_was_cut(header: int, buffers: list[int]) -> None:
    frame = Frame(bytes(range(256)) * (header // 256 + 1), tuple(bytes([size % 251]) * size for size in buffers))
    head, *chunks = [memoryview(message) for message in cut_frame(frame, 7)]
    parcel = Parcel(head, LIMITS)
    for chunk in chunks:
        assert not parcel.is_whole
        assert chunk.nbytes <= CHUNK_BYTES
        parcel.add(chunk)
    assert parcel.is_whole
    assert parcel.taken == 7
    there = parcel.open()
    assert (there.header, [bytes(buffer) for buffer in there.buffers]) == (frame.header, list(frame.buffers))


def test_large_buffer_is_sent_and_received_without_a_copy() -> None:
    buffer = bytearray(CHUNK_BYTES)
    head, chunk = cut_frame(Frame(b"x", (buffer,)), 0)
    parcel = Parcel(memoryview(head), LIMITS)
    parcel.add(memoryview(chunk))
    buffer[5] = 99
    assert parcel.open().buffers[0][5] == 99


async def test_slow_wire_is_not_lost() -> None:
    """A frame that takes longer than the timeout arrives, since its parts count as heartbeats."""
    frame = Frame(b"x", (bytes(CHUNK_BYTES * 5),))
    async with (
        started(plan_node("far", LOOPBACK, timeout_s=3)) as far,
        started(plan_node("near", timeout_s=3)) as near,
        stretched(far.address) as wire,
    ):
        here, there = await join(near, far, wire.address)
        wire.bytes_per_s = CHUNK_BYTES
        begin = time.monotonic()
        await here.send(frame)
        assert (await there.receive()).num_bytes == frame.num_bytes
        assert time.monotonic() - begin > 4


async def test_cut_wire_is_lost_at_both_ends_in_time() -> None:
    async with (
        started(plan_node("far", LOOPBACK, timeout_s=1)) as far,
        started(plan_node("near", timeout_s=1)) as near,
        stretched(far.address) as wire,
    ):
        links = await join(near, far, wire.address)
        wire.flows.clear()
        begin = time.monotonic()
        for link in links:
            with pytest.raises(PeerLost, match="no sign of life for 1 s"):
                await asyncio.wait_for(link.receive(), 5)
        assert 0.9 < time.monotonic() - begin < 3
        wire.flows.set()


async def test_broken_connection_is_lost_at_once() -> None:
    async with started(plan_node("far", LOOPBACK, 30)) as far, started(plan_node("near", timeout_s=30)) as near:
        async with stretched(far.address) as wire:
            links = await join(near, far, wire.address)
        begin = time.monotonic()
        for link in links:
            with pytest.raises(PeerLost, match="the connection broke") as caught:
                await link.receive()
            assert caught.value.cause == "link"
        assert time.monotonic() - begin < 5


async def test_own_sleep_is_not_taken_for_silence_of_others() -> None:
    async with (
        started(plan_node("far", LOOPBACK, timeout_s=30)) as far,
        started(plan_node("near", timeout_s=0.5)) as near,
    ):
        here, there = await join(near, far)
        time.sleep(1.5)  # noqa: ASYNC251 -- the loop hangs, as one does that loads a model
        await asyncio.sleep(0.3)
        await there.send(Frame(b"x"))
        assert (await here.receive()).header == b"x"


async def test_stop_does_not_wait_long_for_who_hangs() -> None:
    async with (
        started(plan_node("far", LOOPBACK)) as far,
        started(plan_node("near")) as near,
        stretched(far.address) as wire,
    ):
        await join(near, far, wire.address)
        wire.flows.clear()
        begin = time.monotonic()
        await near.stop()
        assert time.monotonic() - begin < STOP_S + 1


async def test_waiting_sender_learns_that_this_end_is_closed() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        here, _ = await join(near, far)
        for _ in range(4):
            await here.send(Frame(b"x"))
        waiting = asyncio.create_task(here.send(Frame(b"x")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await here.close()
        with pytest.raises(PeerLost, match="this end is closed"):
            await waiting


async def test_several_frames_taken_are_one_message() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        link = await greet(socket, far)
        for number in range(4):
            socket.send(cut_frame(Frame(bytes([number + 1])), 0)[0])
        await eventually(lambda: len(link.frames) == 4)
        for _ in range(4):
            await link.receive()
        assert await hear(socket) == pack_taken(4)


async def test_account_goes_with_a_frame_that_answers() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        link = await greet(socket, far)
        socket.send(cut_frame(Frame(b"question"), 0)[0])
        await link.receive()
        await link.send(Frame(b"answer"))
        closing = asyncio.create_task(link.close())
        assert Parcel(memoryview(await hear(socket)), LIMITS).taken == 1
        assert await hear(socket) == Kind.BYE
        socket.send(Kind.HEARD_BYE)
        await asyncio.wait_for(closing, 5)


async def test_credit_is_given_back_when_half_is_used_and_not_for_each_frame() -> None:
    async with started(plan_node("far", LOOPBACK, 30)) as far, spoken(far.address) as socket:
        link = await greet(socket, far)
        for _ in range(2):
            for message in cut_frame(Frame(b"x"), 0):
                socket.send(message)
        await link.receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hear(socket), 0.3)
        await link.receive()
        assert await hear(socket) == pack_taken(2)


@pytest.mark.parametrize("credit", [1, 4, 1000])
async def test_neither_end_is_asked_for_more_than_it_grants(credit: int) -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        link = await greet(socket, far, credit)
        for _ in range(min(credit, 4)):
            await asyncio.wait_for(link.send(Frame(b"x")), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.send(Frame(b"x")), 0.2)


HEAD = cut_frame(Frame(b"x"), 0)[0]
FAULTS = {
    "more than 4 frames ahead": [HEAD] * 5,
    "a frame without a header": [cut_frame(Frame(b""), 0)[0]],
    "a frame with 65 buffers": [cut_frame(Frame(b"x", (b"",) * 65), 0)[0]],
    "a frame without a head": [b"F"],
    "a header of 5000000 bytes": [bytes(HEAD[:9]) + (5_000_000).to_bytes(4, "big") + bytes(HEAD[13:])],
    "a count of 9 frames received, where 0 were sent": [pack_taken(9)],
    "a count of 2 bytes": [b"Tx"],
    "the unknown kind b'Z'": [b"Zx"],
    "the unknown kind b''": [b""],
    "the unknown kind b'A'": [Kind.HEARD_BYE],
    "the unknown kind b'H'": [Hello("near", "far", 4).pack()],
    "7 bytes of a frame where 65537 were due": [cut_frame(Frame(b"x", (bytes(65_537),)), 0)[0], bytes(7)],
}


@pytest.mark.parametrize(("fault", "messages"), FAULTS.items(), ids=FAULTS)
async def test_peer_that_says_what_it_should_not_is_lost(fault: str, messages: list[bytes]) -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        link = await greet(socket, far)
        for message in messages:
            socket.send(message)
        await eventually(lambda: link.is_over)
        with pytest.raises(PeerLost, match=fault) as caught:  # noqa: PT012 -- frames before are received
            while True:
                await asyncio.wait_for(link.receive(), 5)
        assert await hear(socket) == b"Eyou sent " + caught.value.message.partition(": it sent ")[2].encode()
        with pytest.raises(PeerLost, match=fault):
            await link.send(Frame(b"x"))


async def test_message_of_several_parts_ends_the_link() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        link = await greet(socket, far)
        socket.send_multipart([HEAD, HEAD])
        with pytest.raises(PeerLost, match="several parts"):
            await asyncio.wait_for(link.receive(), 5)


async def test_message_that_is_too_large_is_never_held() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        link = await greet(socket, far)
        socket.send(bytes(2 * CHUNK_BYTES))
        with pytest.raises(PeerLost, match="the connection broke"):
            await asyncio.wait_for(link.receive(), 5)


async def test_other_version_is_refused_and_says_so() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        hello = bytearray(Hello("near", "far", 4).pack())
        hello[4] += 1
        socket.send(bytes(hello))
        assert await hear(socket) == f"Rversion {VERSION} of links is spoken here, not {VERSION + 1}".encode()


@pytest.mark.parametrize("name", ["", "x" * 257, "a\x1b[31m"])
async def test_greeting_with_no_name_is_ignored(name: str) -> None:
    async with started(plan_node("far", LOOPBACK)) as far, spoken(far.address) as socket:
        socket.send(Hello(name, "far", 4).pack())
        socket.send(Hello("near", "far", 0).pack())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(far.accept(), 0.3)


def greet_as(socket: zmq.Socket[bytes], name: str) -> None:
    socket.send(Hello(name, "far", 4).pack())


async def count_refused(far: ZmqTransport, names: list[str]) -> int:
    """Connect so many nodes, which nobody accepts, and return how many are refused."""
    refused = 0
    async with AsyncExitStack() as stack:
        for name in names:
            socket = await stack.enter_async_context(spoken(far.address))
            greet_as(socket, name)
            assert (await hear(socket))[:1] == Kind.WELCOME
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    refused += await hear(socket) == b"Etoo many links wait to be accepted"
    return refused


async def test_peer_that_lives_and_says_no_goodbye_is_left_without_one() -> None:
    plan = TransportPlan(node="far", listen=LOOPBACK, timeout_s=5.0, busy_s=0.3)
    async with started(plan) as far, spoken(far.address) as socket:
        link = await greet(socket, far)

        async def beat() -> None:
            while True:
                socket.send(Kind.BEAT)
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beat())
        await asyncio.wait_for(link.close(), 10)
        assert link.is_over
        beating.cancel()


async def test_links_that_nobody_accepts_are_bounded() -> None:
    async with started(plan_node("far", LOOPBACK)) as far:
        assert await count_refused(far, [f"machine-{number}" for number in range(MOST_WAITING + 3)]) == 3


async def test_one_machine_cannot_take_all_places_to_wait_in() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        names = [f"greedy/{number}" for number in range(MOST_WAITING_OF_ONE + 2)]
        assert await count_refused(far, names) == 2
        await near.connect(far.address, "far")
        accepted = [await far.accept() for _ in range(MOST_WAITING_OF_ONE + 1)]
        assert accepted[-1].peer == "near"


async def test_link_that_nobody_accepts_for_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "WAITING_S", 0.2)
    async with started(plan_node("far", LOOPBACK, timeout_s=1)) as far, started(plan_node("near")) as near:
        link = await near.connect(far.address, "far")
        with pytest.raises(PeerLost, match="the link was not accepted"):
            await asyncio.wait_for(link.receive(), 5)
        assert far.measure().waiting == 0


STRANGERS = FrameLimits(header_bytes=2**10, frame_bytes=2**10, buffers=0)
LARGE = Frame(b"x", (bytes(2**16),))


async def link_strangers(far: ZmqTransport, near: ZmqTransport) -> tuple[ZmqLink, ZmqLink]:
    here, there = await join(near, far)
    await here.send(Frame(b"hello"))
    assert (await there.receive()).header == b"hello"
    return here, there


async def test_stranger_may_say_little_until_it_is_admitted() -> None:
    plan = TransportPlan(node="far", listen=LOOPBACK, strangers=STRANGERS)
    async with started(plan) as far, started(plan_node("near")) as near:
        here, there = await link_strangers(far, near)
        there.admit()
        await here.send(LARGE)
        assert (await there.receive()).num_bytes == LARGE.num_bytes


@pytest.mark.parametrize("frame", [LARGE, Frame(bytes(2**10 + 1)), Frame(b"x", (b"",))])
async def test_stranger_that_says_much_is_lost(frame: Frame) -> None:
    plan = TransportPlan(node="far", listen=LOOPBACK, strangers=STRANGERS)
    async with started(plan) as far, started(plan_node("near")) as near:
        here, there = await link_strangers(far, near)
        await here.send(frame)
        with pytest.raises(PeerLost, match=r"it sent a (header|frame)") as caught:
            await asyncio.wait_for(there.receive(), 5)
        assert (caught.value.cause, caught.value.peer) == ("invalid_frame", "near")


async def test_who_makes_a_link_takes_large_frames_at_once() -> None:
    plans = (
        TransportPlan(node="far", listen=LOOPBACK, strangers=STRANGERS),
        TransportPlan(node="near", strangers=STRANGERS),
    )
    async with started(plans[0]) as far, started(plans[1]) as near:
        here, there = await join(near, far)
        await there.send(LARGE)
        assert (await here.receive()).num_bytes == LARGE.num_bytes


async def test_connection_that_was_given_up_leaves_nothing() -> None:
    async with started(plan_node("far", LOOPBACK, timeout_s=1)) as far, started(plan_node("near")) as near:
        for delay in (0, 0.001, 0.01):
            connecting = asyncio.create_task(near.connect(far.address, "far"))
            await asyncio.sleep(delay)
            connecting.cancel()
            with suppress(asyncio.CancelledError):
                link = await connecting
                await link.close()
        assert near.measure().calls == 0
        await eventually(lambda: far.measure().links == far.measure().connections == 0)


async def test_stop_ends_a_connection_that_is_being_made() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        async with started(plan_node("near")) as near:
            connecting = asyncio.create_task(near.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}", "far"))
            await asyncio.sleep(0.1)
            await near.stop()
            with pytest.raises(PeerLost, match="this node has stopped"):
                await connecting
