from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_core.api import Frame, FrameLimits, ParallaxError, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import LISTENERS, InProcessLink, InProcessTransport

Ends = tuple[InProcessLink, InProcessLink]


@asynccontextmanager
async def linked(limits: FrameLimits | None = None, credit: int = 2) -> AsyncIterator[Ends]:
    """Yield both ends of a link from ``alpha`` to ``beta``; ``limits`` and ``credit`` are those of ``beta``."""
    plan = TransportPlan(node="beta", listen="inprocess://b", limits=limits or FrameLimits(), credit=credit)
    alpha, beta = InProcessTransport(TransportPlan(node="alpha")), InProcessTransport(plan)
    await beta.start()
    try:
        yield await alpha.connect(beta.address, "beta"), await beta.accept()
    finally:
        await alpha.stop()
        await beta.stop()


def listening(node: str, address: str) -> InProcessTransport:
    return InProcessTransport(TransportPlan(node=node, listen=address))


async def test_frames_are_handed_over_as_they_are() -> None:
    frame = Frame(b"header", (memoryview(bytearray(b"data")),))
    async with linked() as (near, far):
        await near.send(frame)
        assert await far.receive() is frame
        await far.send(frame)
        assert await near.receive() is frame


async def test_sender_waits_when_the_receiver_has_no_credit_left() -> None:
    async with linked(credit=2) as (near, far):
        await near.send(Frame(b"0"))
        await near.send(Frame(b"1"))
        third = asyncio.ensure_future(near.send(Frame(b"2")))
        await asyncio.sleep(0.01)
        assert not third.done()
        assert (await far.receive()).header == b"0"
        await third
        assert [(await far.receive()).header for _ in range(2)] == [b"1", b"2"]


async def test_send_that_is_cancelled_while_it_waits_sends_nothing() -> None:
    async with linked(credit=1) as (near, far):
        await near.send(Frame(b"0"))
        waiting = asyncio.ensure_future(near.send(Frame(b"lost")))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await far.receive()).header == b"0"
        await near.send(Frame(b"1"))
        assert (await far.receive()).header == b"1"


async def test_frames_sent_before_a_close_arrive_and_then_the_peer_is_lost() -> None:
    async with linked() as (near, far):
        await near.send(Frame(b"last"))
        await near.close()
        assert (await far.receive()).header == b"last"
        with pytest.raises(PeerLost, match="'alpha' is closed"):
            await far.receive()
        with pytest.raises(PeerLost):
            await far.send(Frame(b"x"))
        with pytest.raises(PeerLost):
            await near.receive()


async def test_stop_wakes_whoever_waits_to_send() -> None:
    async with linked(credit=1) as (near, far):
        await near.send(Frame(b"0"))
        waiting = asyncio.ensure_future(near.send(Frame(b"1")))
        await asyncio.sleep(0)
        await far.close()
        with pytest.raises(PeerLost):
            await waiting


async def test_frame_beyond_the_receivers_limits_ends_the_link() -> None:
    async with linked(FrameLimits(header_bytes=3)) as (near, far):
        await near.send(Frame(b"1234"))
        with pytest.raises(PeerLost, match="4 bytes; at most 3 are allowed") as caught:
            await far.receive()
        assert caught.value.cause == "invalid_frame"
        with pytest.raises(PeerLost):
            await near.receive()
        with pytest.raises(ValueError, match="3 are allowed"):
            await far.send(Frame(b"1234"))


async def test_two_nodes_of_one_address_are_refused() -> None:
    first, second = listening("one", "inprocess://same"), listening("two", "inprocess://same")
    await first.start()
    with pytest.raises(ParallaxError, match="node 'one' of this process listens at inprocess://same already"):
        await second.start()
    await second.stop()
    assert first.address == "inprocess://same"
    await first.stop()
    await second.start()
    await second.stop()


async def test_address_without_a_name_takes_a_free_one() -> None:
    nodes = [listening("stage-0", "inprocess://") for _ in range(3)]
    for node in nodes:
        await node.start()
    assert [node.address for node in nodes] == [f"inprocess://stage-0-{number}" for number in (1, 2, 3)]
    for node in nodes:
        await node.stop()


async def test_connecting_names_what_is_wrong() -> None:
    node = listening("one", "inprocess://one")
    await node.start()
    with pytest.raises(PeerLost, match="no node listens at inprocess://two"):
        await node.connect("inprocess://two", "two")
    with pytest.raises(PeerLost, match="is called 'one', not 'two'"):
        await node.connect("inprocess://one", "two")
    with pytest.raises(ParallaxError, match="is not an in-process address") as caught:
        await node.connect("tcp://127.0.0.1:1", "two")
    assert caught.value.hint == "write inprocess://NAME"
    await node.stop()
    with pytest.raises(PeerLost, match="no node listens"):
        await InProcessTransport(TransportPlan(node="two")).connect("inprocess://one", "one")


def test_nodes_of_another_loop_are_not_there_and_are_forgotten() -> None:
    async def begin() -> InProcessTransport:
        node = listening("one", "inprocess://one")
        await node.start()
        return node

    async def seek() -> None:
        await InProcessTransport(TransportPlan(node="two")).connect("inprocess://one", "one")

    gc.collect()
    before = len(LISTENERS)
    node = asyncio.run(begin())
    with pytest.raises(PeerLost):
        asyncio.run(seek())
    del node
    gc.collect()
    assert len(LISTENERS) == before
