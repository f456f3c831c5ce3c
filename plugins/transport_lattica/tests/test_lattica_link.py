"""Links over lattica: many frames, and a pipeline."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from parallax_core.api import Frame, LayerRange, Request, RequestId
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.toy import GREEDY, Toy
from parallax_transport_lattica.transport import LatticaTransport
from tests.support.lattica_nodes import LOOPBACK, join, plan_node, started

TOY = Toy(("full", "window", "full"))
LENGTH = 20
MANY = 10_000


@pytest.mark.slow
async def test_ten_thousand_frames_with_sixteen_in_flight_arrive_in_order() -> None:
    async with started(plan_node("far", LOOPBACK, credit=16)) as far, started(plan_node("near", credit=16)) as near:
        here, there = await join(near, far)

        async def send() -> None:
            for number in range(MANY):
                await here.send(Frame(number.to_bytes(8, "big"), (bytes(number % 5000),)))

        sending = asyncio.create_task(send())
        for number in range(MANY):
            frame = await there.receive()
            assert int.from_bytes(frame.header, "big") == number
            assert len(frame.buffers[0]) == number % 5000
        await sending


async def test_three_stages_over_links_equal_the_whole() -> None:
    stages = [partial(TOY.open, LayerRange(layer, layer + 1)) for layer in range(3)]
    plan = PipelineOptions(transport=LatticaTransport, listen=LOOPBACK)
    engine = PipelineEngine(LocalExecutor(stages, plan), lambda tokens: " word" * len(tokens), plan)
    await engine.start()

    async def ask(number: int) -> list[int]:
        prompt = tuple(range(number + 1))
        request = Request(id=RequestId(str(number)), prompt=prompt, max_tokens=LENGTH, sampling=GREEDY)
        return [token async for delta in engine.submit(request) for token in delta.tokens]

    answers = await asyncio.gather(*map(ask, range(6)))
    await engine.stop()
    assert answers == [TOY.continuation(range(number + 1), LENGTH) for number in range(6)]
