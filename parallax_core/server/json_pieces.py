"""JSON in pieces: however large an answer is, nobody else waits while it is written and sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from fastapi.responses import Response, StreamingResponse

MESSAGE_BYTES, MESSAGE_PIECES = 2**18, 2**13
"""At most so much is sent at a time, and so many pieces, but for a single one that is larger."""

JsonObject = dict[str, object]

to_json = msgspec.json.Encoder().encode  # a seventh of the time json.dumps takes, for every token


def write_object(fields: Mapping[str, object], name: str, value: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the JSON of an object with ``fields``, of which there is one at least, and one more in pieces."""
    yield to_json(fields)[:-1] + b"," + to_json(name) + b":"
    yield from value
    yield b"}"


def write_list(items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the JSON of a list."""
    return write_lists((item,) for item in items)


def write_lists(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the JSON of a list whose items come in pieces themselves."""
    separator = b"["
    for item in items:
        yield separator
        yield from item
        separator = b","
    yield b"]" if separator == b"," else b"[]"


def cut(text: bytes) -> Iterator[bytes]:
    """Yield what is JSON already in pieces."""
    return (text[start : start + MESSAGE_BYTES] for start in range(0, len(text), MESSAGE_BYTES))


async def gather(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces in messages of a good size, and let others run in between."""
    rest = iter(pieces)
    while True:
        message, is_last = _take(rest)
        yield message
        if is_last:
            return
        await asyncio.sleep(0)


def respond(pieces: Iterable[bytes]) -> Response:
    """Return the response whose body is these pieces of JSON; a large one is written while it is sent."""
    rest = iter(pieces)
    first, is_last = _take(rest)
    if is_last:
        return Response(first, media_type="application/json")
    return StreamingResponse(gather(chain((first,), rest)), media_type="application/json")


def _take(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return the next message, and whether it is the last."""
    message, size = [], 0
    for piece in pieces:
        message.append(piece)
        size += len(piece)
        if size >= MESSAGE_BYTES or len(message) >= MESSAGE_PIECES:
            return b"".join(message), False
    return b"".join(message), True
