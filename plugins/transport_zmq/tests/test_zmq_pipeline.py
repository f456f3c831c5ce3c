"""A pipeline whose frames go over these links gives the tokens of the model computed alone."""

from __future__ import annotations

import asyncio
from functools import partial

from parallax_core.api import LayerRange, Request, RequestId
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.toy import GREEDY, Toy
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.zmq_nodes import LOOPBACK

TOY = Toy(("full", "window", "full"))
LENGTH = 20


async def test_three_stages_over_links_equal_the_whole() -> None:
    stages = [partial(TOY.open, LayerRange(layer, layer + 1)) for layer in range(3)]
    plan = PipelineOptions(transport=ZmqTransport, listen=LOOPBACK)
    engine = PipelineEngine(LocalExecutor(stages, plan), lambda tokens: " word" * len(tokens), plan)
    await engine.start()

    async def ask(number: int) -> list[int]:
        prompt = tuple(range(number + 1))
        request = Request(id=RequestId(str(number)), prompt=prompt, max_tokens=LENGTH, sampling=GREEDY)
        return [token async for delta in engine.submit(request) for token in delta.tokens]

    answers = await asyncio.gather(*map(ask, range(6)))
    await engine.stop()
    assert answers == [TOY.continuation(range(number + 1), LENGTH) for number in range(6)]
