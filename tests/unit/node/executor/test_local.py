from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from parallax_core.api import Epoch, LayerRange, ParallaxError, PeerLost, Stage, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.toy import Toy
from parallax_core.wire.messages import Failure, Heartbeat, Message, Result, Step

TOY = Toy(("full", "full", "full"))
STAGES: list[Callable[[], Stage]] = [partial(TOY.open, LayerRange(layer, layer + 1)) for layer in range(3)]
PATIENCE_S = 20.0


async def hear(channel: Channel) -> Message:
    async with asyncio.timeout(PATIENCE_S):
        return await channel.receive()


async def test_step_passes_every_stage_and_each_tells_the_head() -> None:
    executor = LocalExecutor(STAGES)
    infos = await executor.open()
    assert [info.layers.start for info in infos] == [0, 1, 2]
    await executor.channels[0].send(Step(Epoch(0), 1))
    heard = [await hear(channel) for channel in executor.channels]
    assert [(type(message), message.stage) for message in heard if isinstance(message, Result)] == [
        (Result, stage) for stage in range(3)
    ]
    await executor.close()


def test_operator_never_has_to_start_its_stages() -> None:
    assert LocalExecutor(STAGES).needs() == ""


async def test_stages_beat_when_asked() -> None:
    executor = LocalExecutor(STAGES, PipelineOptions(heartbeat_s=0.01))
    await executor.open()
    assert [await hear(channel) for channel in executor.channels] == [
        Heartbeat(Epoch(0), -1, stage) for stage in range(3)
    ]
    await executor.close()


async def test_stage_that_ends_takes_its_links_with_it() -> None:
    executor = LocalExecutor(STAGES)
    await executor.open()
    await executor.channels[0].send(Step(Epoch(0), 2))
    first, second, third = [await hear(channel) for channel in executor.channels]
    assert isinstance(first, Failure)
    assert "step 2 came" in first.message
    for message, peer in ((second, "stage-0"), (third, "stage-1")):
        assert isinstance(message, Failure)
        assert f"'{peer}' is closed" in message.message
    for channel in executor.channels:
        with pytest.raises(PeerLost):
            await hear(channel)
    await executor.close()


async def test_open_that_fails_half_way_leaves_no_listener() -> None:
    executor = LocalExecutor(STAGES, PipelineOptions(listen="inprocess://one-place"))
    with pytest.raises(ParallaxError, match="'stage-0' of this process listens at inprocess://one-place already"):
        await executor.open()
    await executor.close()
    node = InProcessTransport(TransportPlan(node="next", listen="inprocess://one-place"))
    await node.start()
    await node.stop()


async def test_closed_crew_is_heard_of_no_more() -> None:
    executor = LocalExecutor(STAGES)
    await executor.open()
    await executor.close()
    for channel in executor.channels:
        with pytest.raises(PeerLost):
            await hear(channel)
        with pytest.raises(PeerLost):
            await channel.send(Step(Epoch(0), 1))
