"""Writes the events of streams in OpenAI's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import chain

from parallax_core.api import ParallaxError
from parallax_core.api.dialect import ResponseFlow, SseResponse, error_response, join_pieces

DONE = b"data: [DONE]\n\n"
"""The end of a successful stream."""

EventData = bytes | Iterable[bytes]
"""The JSON of an event, or its pieces if it may be large."""


def stream_chunks(chunks: AsyncIterator[EventData], flow: ResponseFlow) -> SseResponse:
    """Return the response that sends chunks, each given as JSON or pieces of JSON."""
    return SseResponse(_write_events(chunks, flow), flow)


async def _write_events(events: AsyncIterator[EventData], flow: ResponseFlow) -> AsyncIterator[bytes]:
    try:
        async for data in events:
            if isinstance(data, bytes):
                yield b"data: %b\n\n" % data
                continue
            messages = join_pieces(_write_event(data))
            yield next(messages)
            for message in messages:
                await asyncio.sleep(0)
                yield message
    except ParallaxError as error:
        response = error_response(error)
        flow.count_error(response.status_code)
        yield b"".join(_write_event((bytes(response.body),)))
        return
    yield DONE


def _write_event(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """Return the pieces of an event with these pieces of JSON as its data."""
    return chain((b"data: ",), pieces, (b"\n\n",))
