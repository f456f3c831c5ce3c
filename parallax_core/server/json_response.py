"""Answers HTTP requests with JSON in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import chain

from fastapi.responses import Response, StreamingResponse

from parallax_core.server.json_pieces import join_pieces, take_message, to_json


async def gather(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces joined to messages, and let other tasks run in between."""
    messages = join_pieces(pieces)
    yield next(messages)
    for message in messages:
        await asyncio.sleep(0)
        yield message


def respond_with(reply: object, status: int = 200) -> Response:
    """Return the response with a small object as its body."""
    return Response(to_json(reply), status, media_type="application/json")


def respond(pieces: Iterable[bytes]) -> Response:
    """Return the response with these pieces of JSON as its body; a large one is written while it is sent."""
    rest = iter(pieces)
    first, is_last = take_message(rest)
    if is_last:
        return Response(first, media_type="application/json")
    return StreamingResponse(gather(chain((first,), rest)), media_type="application/json")
