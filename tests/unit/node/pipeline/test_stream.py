from __future__ import annotations

import asyncio

from parallax_core.api import Delta, Finish
from parallax_core.node.pipeline.stream import QueueStream

LAST = Delta(finish=Finish(reason="stop", prompt_tokens=1, output_tokens=1))


async def test_stream_yields_what_is_put_up_to_the_finish() -> None:
    stream = QueueStream(lambda: None)
    for delta in (Delta(text="a"), LAST, Delta(text="too late")):
        stream.put(delta)
    assert [delta async for delta in stream] == [Delta(text="a"), LAST]


async def test_closed_stream_ends_at_once_and_aborts_once() -> None:
    aborted: list[int] = []
    stream = QueueStream(lambda: aborted.append(1))

    async def read() -> list[Delta]:
        return [delta async for delta in stream]

    reading = asyncio.create_task(read())
    stream.put(Delta(text="a"))
    await asyncio.sleep(0)
    stream.close()
    stream.close()
    stream.put(Delta(text="too late"))
    assert await asyncio.wait_for(reading, 5) == [Delta(text="a")]
    assert aborted == [1]


async def test_stream_that_has_ended_aborts_nothing() -> None:
    aborted: list[int] = []
    stream = QueueStream(lambda: aborted.append(1))
    stream.put(LAST)
    stream.close()
    assert aborted == []
