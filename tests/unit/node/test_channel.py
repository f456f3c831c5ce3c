from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from parallax_core.api import Epoch, Frame, FrameLimits, Link, PeerLost, Tensor, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.cluster.failure_detector import MIN_INTERVALS
from parallax_core.contracts.service_message import ServiceMessage, service_tag
from parallax_core.node.channel import MOST_TASKS, Channel
from parallax_core.wire.codec import VERSION_BYTE, encode
from parallax_core.wire.membership import HandOver
from parallax_core.wire.messages import Failure, Step, UnsupportedMessage

MIN_TIMEOUT_S, TIMEOUT_S = 0.2, 600.0
"""Of silence: what is noticed before the test itself times out was noticed by heartbeats."""
STEP = Step(Epoch(2), 3, hidden=(Tensor("float32", (0, 2), b""),))


class MonitoredLink:
    """A link whose heartbeats come when a test says so."""

    timeout_s = TIMEOUT_S

    def __init__(self, link: Link) -> None:
        self._link = link
        self.peer, self.send, self.receive, self.close = link.peer, link.send, link.receive, link.close

    def monitor(self, hear: Callable[[], None]) -> None:
        self.hear = hear

    async def beat(self) -> None:
        """Have enough heartbeats come to adapt to."""
        for _ in range(2 * MIN_INTERVALS):
            self.hear()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Link]]:
    node = InProcessTransport(TransportPlan(node="far", listen="inprocess://", limits=FrameLimits(header_bytes=200)))
    await node.start()
    yield await InProcessTransport(TransportPlan(node="near")).connect(node.address, "far"), await node.accept()
    await node.stop()


async def test_message_arrives_as_it_was_sent() -> None:
    async with linked() as (near, far):
        await Channel(near).send(STEP)
        assert await Channel(far).receive() == STEP
        assert Channel(near).peer == "far"


@pytest.mark.parametrize(
    ("frame", "said"),
    [(Frame(VERSION_BYTE + b"\xff"), "a frame cannot be read"), (Frame(b"\xff\x01"), "the peer uses version 255")],
)
async def test_peer_whose_frames_cannot_be_read_is_cut_off(frame: Frame, said: str) -> None:
    async with linked() as (near, far):
        await near.send(frame)
        with pytest.raises(PeerLost, match=f"node 'near' is cut off: {said}") as caught:
            await Channel(far).receive()
        assert (caught.value.cause, caught.value.peer) == ("invalid_frame", "near")
        assert "same version of Parallax" in caught.value.hint
        with pytest.raises(PeerLost):
            await near.receive()


async def test_message_beyond_the_limits_is_refused_and_the_channel_goes_on() -> None:
    async with linked() as (near, far):
        with pytest.raises(ValueError, match="200 are allowed"):
            await Channel(far).send(Failure(Epoch(0), 0, 0, "x" * 300))
        await Channel(far).send(STEP)
        assert await Channel(near).receive() == STEP
        await Channel(far).close()
        for work in (Channel(near).receive(), Channel(near).send(STEP)):
            with pytest.raises(PeerLost) as caught:
                await work
            assert (caught.value.cause, caught.value.peer) == ("link", "far")


async def test_watched_peer_whose_heartbeats_stop_is_cut_off() -> None:
    async with linked() as (near, far):
        link = MonitoredLink(near)
        channel = Channel(link)
        channel.watch(MIN_TIMEOUT_S)
        receiving = asyncio.create_task(channel.receive())
        await link.beat()
        assert not receiving.done()
        for work in (receiving, channel.receive(), channel.send(STEP)):
            with pytest.raises(PeerLost, match=r"node 'far' is cut off: no sign of life for 0\.") as caught:
                await work
            assert (caught.value.cause, caught.value.peer) == ("link", "far")
        with pytest.raises(PeerLost):
            await far.receive()


async def test_peer_that_is_watched_no_longer_is_not_judged() -> None:
    async with linked() as (near, far):
        link = MonitoredLink(near)
        channel = Channel(link)
        channel.watch(MIN_TIMEOUT_S)
        await link.beat()
        channel.unwatch()
        await asyncio.sleep(3 * MIN_TIMEOUT_S)
        await channel.send(STEP)
        assert await Channel(far).receive() == STEP


async def test_peer_of_a_channel_that_was_left_is_not_judged() -> None:
    async with linked() as (near, _):
        link = MonitoredLink(near)
        channel = Channel(link)
        channel.watch(MIN_TIMEOUT_S)
        await link.beat()
        await channel.leave()
        await asyncio.sleep(3 * MIN_TIMEOUT_S)
        assert channel.silence_s == 0


async def test_observer_whose_own_event_loop_was_blocked_loses_no_peer() -> None:
    async with linked() as (near, far):
        link = MonitoredLink(near)
        channel = Channel(link)
        channel.watch(MIN_TIMEOUT_S)
        await link.beat()
        time.sleep(3 * MIN_TIMEOUT_S)  # noqa: ASYNC251 -- the event loop is to be blocked
        await asyncio.sleep(0.02)
        await link.beat()
        await channel.send(STEP)
        assert await Channel(far).receive() == STEP


async def test_peer_is_judged_anew_when_it_is_watched_again() -> None:
    async with linked() as (near, far):
        link = MonitoredLink(near)
        channel = Channel(link)
        channel.watch(MIN_TIMEOUT_S)
        await link.beat()
        channel.watch(MIN_TIMEOUT_S)
        await asyncio.sleep(3 * MIN_TIMEOUT_S)
        await Channel(far).send(STEP)
        assert await channel.receive() == STEP


async def test_link_without_heartbeats_of_its_own_is_left_to_its_transport() -> None:
    async with linked() as (near, far):
        channel = Channel(near)
        channel.watch(MIN_TIMEOUT_S)
        channel.unwatch()
        await Channel(far).send(STEP)
        assert await channel.receive() == STEP


async def is_closed(link: Link) -> bool:
    """Return whether the other end of a link has been closed."""
    try:
        async with asyncio.timeout(5):
            await link.receive()
    except PeerLost:
        return True
    return False


async def test_link_that_was_to_take_over_ends_with_the_one_before() -> None:
    async with linked() as (_, old), linked() as (near, far):
        channel = Channel(old)
        channel.succeed_by(Channel(far))
        await channel.leave()
        assert await is_closed(near)


async def test_newer_link_that_is_to_take_over_replaces_the_older() -> None:
    async with linked() as (near, far), linked() as (first, first_far), linked() as (second, second_far):
        channel = Channel(far)
        channel.succeed_by(Channel(first_far))
        channel.succeed_by(Channel(second_far))
        assert await is_closed(first)
        await Channel(near).hand_over(after := Channel(second))
        await after.send(STEP)
        assert await channel.receive() == STEP


async def test_second_hand_over_is_unexpected() -> None:
    async with linked() as (near, far), linked() as (direct, direct_far):
        channel = Channel(far)
        channel.succeed_by(Channel(direct_far))
        await Channel(near).send(HandOver())
        await Channel(direct).send(HandOver())
        assert await channel.receive() == HandOver()


async def test_link_that_cannot_be_handed_over_is_closed() -> None:
    async with linked() as (near, _far), linked() as (direct, _):
        while True:  # until the other node has too many messages to read
            try:
                async with asyncio.timeout(0.05):
                    await Channel(near).send(STEP)
            except TimeoutError:
                break
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Channel(near).hand_over(Channel(direct))
        with pytest.raises(PeerLost):
            await near.send(Frame(b"x"))


class Note(ServiceMessage, frozen=True, tag=service_tag("notes", 0)):
    most_per_s: ClassVar[float] = 2.0

    number: int = 0


async def test_unknown_message_is_dropped_and_its_sender_told_once() -> None:
    async with linked() as (near, far):
        channel = Channel(far)
        channel.is_greeted = True
        for number in range(5):
            await Channel(near).send(Note(number))
        await Channel(near).send(STEP)
        assert await channel.receive() == STEP
        await channel.send(STEP)
        assert {await receive_raw(near), await receive_raw(near)} == {encode(UnsupportedMessage(TAG)), encode(STEP)}


async def test_unknown_message_before_the_greeting_ends_the_link() -> None:
    async with linked() as (near, far):
        await Channel(near).send(Note())
        with pytest.raises(PeerLost, match=f"it holds a message of an unknown kind, {TAG}"):
            await Channel(far).receive()


async def test_messages_beyond_their_rate_are_dropped_and_the_sender_is_told() -> None:
    async with linked() as (near, far):
        channel, taken = Channel(far), list[Note]()
        channel.divert(Note, taken.append)
        for number in range(9):
            await Channel(near).send(Note(number))
        await Channel(near).send(STEP)
        assert await channel.receive() == STEP
        assert taken == [Note(0), Note(1)]
        assert await receive_raw(near) == encode(UnsupportedMessage(TAG, "too many"))


async def test_message_that_was_dropped_by_the_peer_is_logged_and_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with linked() as (near, far):
        await Channel(near).send(UnsupportedMessage(TAG))
        await Channel(near).send(STEP)
        assert await Channel(far).receive() == STEP
        assert f"message was dropped by node=near tag={TAG}: unknown" in caplog.text


async def test_peer_that_reads_nothing_is_not_waited_for() -> None:
    async with linked() as (near, far):
        channel, others = Channel(far), len(asyncio.all_tasks())
        channel.is_greeted = True
        frames = [*(Frame(VERSION_BYTE + msgspec.msgpack.encode([tag])) for tag in range(1000, 1100)), encode(STEP)]
        sending = asyncio.create_task(send_all(near, frames))
        assert await channel.receive() == STEP
        await sending
        assert len(asyncio.all_tasks()) - others <= MOST_TASKS


TAG = service_tag("notes", 0)


async def send_all(link: Link, frames: Sequence[Frame]) -> None:
    for frame in frames:
        await link.send(frame)


async def receive_raw(link: Link) -> Frame:
    """Return the next frame of a link, with buffers that compare."""
    frame = await link.receive()
    return Frame(frame.header, tuple(bytes(each) for each in frame.buffers))
