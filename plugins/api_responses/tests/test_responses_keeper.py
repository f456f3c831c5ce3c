from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_api_responses import keeper as module
from parallax_api_responses.keeper import ResponseKeeper, make_keeper
from parallax_api_responses.store import ResponseStore, StoredResponse
from parallax_core.base.errors import InvalidRequest, ParallaxError, Unavailable
from parallax_core.server.options import ServerOptions

OWNER = b"me"


class FullStore:
    """A store that cannot keep anything while it is full."""

    is_full = True
    begun = ()
    num_kept = 0

    async def put(self, response: StoredResponse, events: object = None) -> None:
        del response, events
        if self.is_full:
            raise ParallaxError("the response store cannot be used: database or disk is full")
        self.num_kept += 1


def make_writer() -> Any:
    return SimpleNamespace(id="resp_1", plan=SimpleNamespace(stores=True, previous=None, input=b"[]"), reply={})


async def test_store_that_is_full_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    store = FullStore()
    keeper = ResponseKeeper(store)  # type: ignore[arg-type]
    with caplog.at_level("INFO"):
        for _ in range(3):
            await keeper.save(OWNER, make_writer())
        store.is_full = False
        await keeper.save(OWNER, make_writer())
    told = ["responses are not kept: the response store cannot be used: database or disk is full"]
    assert [record.getMessage() for record in caplog.records] == [*told, "the response store can be written again"]
    assert store.num_kept == 1


async def test_responses_are_kept_in_memory_if_the_disk_is_full_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_store(path: Path | None, *limits: float) -> ResponseStore:
        if path is not None:
            raise ParallaxError("the response store cannot be opened") from OSError(errno.ENOSPC, "no space left")
        return ResponseStore(None, int(limits[0]), limits[1])

    monkeypatch.setattr(module, "ResponseStore", open_store)
    keeper = make_keeper(replace(ServerOptions(), response_store=tmp_path / "store"))
    assert keeper.has_store
    assert "until a restart, responses are kept in memory" in caplog.text
    await keeper.close()


def test_store_that_cannot_be_opened_for_another_reason_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match="cannot be opened"):
        make_keeper(replace(ServerOptions(), response_store=tmp_path / "missing" / "store"))


class DurableStore:
    """A store that keeps responses as they come."""

    is_durable = True
    begun = ()

    async def begin(self, begun: object) -> None:
        """Keep nothing."""

    async def append(self, name: str, piece: bytes) -> None:
        """Keep nothing."""


class StoppedFlow:
    """An answer whose engine stops."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def collect(self) -> AsyncIterator[Any]:
        await self.stopped.wait()
        if self.stopped.is_set():
            raise Unavailable("the server is stopping")
        yield

    def close(self) -> None:
        """Have nothing open."""


async def test_response_that_is_left_to_the_next_server_is_not_unknown_meanwhile() -> None:
    keeper, flow, writer = ResponseKeeper(DurableStore()), StoppedFlow(), make_writer()  # type: ignore[arg-type]
    writer.queue, writer.reply = list, SimpleNamespace(status="in_progress")
    run = await keeper.run(OWNER, flow, writer, SimpleNamespace(id=writer.id))  # type: ignore[arg-type]
    keeper.suspend()
    flow.stopped.set()
    await run.wait()
    with pytest.raises(Unavailable, match="goes on when its model is loaded"):
        keeper.find_run(OWNER, writer.id)
    with pytest.raises(InvalidRequest, match="is not complete"):
        await keeper.find_history(OWNER, writer.id)
    assert keeper.find_run(b"another", writer.id) is None
