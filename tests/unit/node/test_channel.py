from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_core.api import Epoch, Frame, FrameLimits, LeaseId, Link, PeerLost, Tensor, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.wire.codec import VERSION_BYTE
from parallax_core.wire.messages import Failure, Step

STEP = Step(LeaseId(1), Epoch(2), 3, hidden=(Tensor("float32", (0, 2), b""),))


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
            await Channel(far).send(Failure(LeaseId(1), Epoch(0), 0, 0, "x" * 300))
        await Channel(far).send(STEP)
        assert await Channel(near).receive() == STEP
        await Channel(far).close()
        for work in (Channel(near).receive(), Channel(near).send(STEP)):
            with pytest.raises(PeerLost) as caught:
                await work
            assert (caught.value.cause, caught.value.peer) == ("link", "far")
