from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from parallax_core.base.errors import Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.node.engine_base import EngineBase


class Slow(EngineBase[None]):
    """An engine that opens for ever, and takes a moment to give that up."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    async def _open(self) -> None:
        self.told.append("opens")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            self.told.append("opens no more")

    def _begin(self, opened: None) -> Coroutine[None, None, None]:
        raise AssertionError("it never opens")

    async def _release(self) -> None:
        self.told.append("released")

    def _needs(self) -> str:
        return ""

    def _cancel(self, request_id: RequestId) -> None:
        raise AssertionError("it has no request")


async def test_nothing_is_released_while_an_engine_that_is_stopped_still_opens() -> None:
    engine = Slow()
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.stop()
    assert engine.told == ["opens", "opens no more", "released"]
    with pytest.raises(Unavailable, match="the engine was stopped while it started"):
        await starting
    with pytest.raises(Unavailable, match="the engine cannot start: it is draining"):
        await engine.start()
