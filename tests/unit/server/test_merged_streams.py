from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from parallax_core.api import BackendFailed
from parallax_core.contracts.engine import Delta
from parallax_core.server.merged_streams import merge


class Panic(BaseException):
    """What a library written in Rust raises when it panics."""


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [(RuntimeError("gone"), RuntimeError, "gone"), (Panic("gone"), BackendFailed, "Panic: gone")],
)
async def test_stream_that_cannot_be_read_ends_the_others(
    error: BaseException, kind: type[Exception], message: str
) -> None:
    async def fail() -> AsyncIterator[Delta]:
        yield Delta(text="a")
        raise error

    async def wait() -> AsyncIterator[Delta]:
        await asyncio.Event().wait()
        yield Delta()

    with pytest.raises(kind, match=message):
        async with asyncio.timeout(10):
            assert [delta.text async for _, delta in merge([fail(), wait()])] == ["a"]  # type: ignore[list-item]
