"""Merges the streams of the requests of one body."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence

from parallax_core.base.errors import BackendFailed
from parallax_core.base.faults import describe_error
from parallax_core.base.tasks import TASK_ENDINGS
from parallax_core.contracts.engine import Delta, Stream

Queue = asyncio.Queue[tuple[int, Delta | Exception]]
"""The deltas or errors of several streams, each with the number of its stream."""

logger = logging.getLogger(__name__)


class StreamClosed(Exception):
    """A stream has ended without a finish: it was closed."""


async def merge(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Delta]]:
    """Yield the deltas of all streams as they arrive; the first error ends all streams."""
    queue: Queue = asyncio.Queue(1)  # unread deltas stay in the streams, where they are counted
    num_open = len(streams)
    tasks = [asyncio.create_task(_pump(number, stream, queue)) for number, stream in enumerate(streams)]
    try:
        while num_open:
            number, news = await queue.get()
            if isinstance(news, Exception):
                raise news
            num_open -= news.finish is not None
            yield number, news
    finally:
        for task in tasks:
            task.cancel()


async def _pump(number: int, stream: Stream, queue: Queue) -> None:
    is_over = False
    try:
        async for delta in stream:
            is_over = delta.finish is not None
            await queue.put((number, delta))
        if not is_over:
            await queue.put((number, StreamClosed()))
    except Exception as error:  # noqa: BLE001 -- raised again where the deltas are read
        await queue.put((number, error))
    except TASK_ENDINGS:
        raise
    except BaseException as error:
        logger.exception("stream failed")
        await queue.put((number, BackendFailed(describe_error(error))))
