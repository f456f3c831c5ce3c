from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.server.responses.store import OVERHEAD, ResponseStore, StoredResponse

ME, YOU = b"me", b"you"
TTL_S = 100.0


@dataclass
class Clock:
    """A clock that tests set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def response(name: str, owner: bytes = ME, previous: str | None = None, size: int = 10) -> StoredResponse:
    body = msgspec.json.encode({"output": [f"out {name}"], "more": "b" * size})
    return StoredResponse(id=name, owner=owner, previous=previous, body=body, input=msgspec.json.encode([f"in {name}"]))


def make_store(clock: Clock, path: Path | None = None, room: int = 100) -> ResponseStore:
    """Return a store with room for so many responses, but not for one more."""
    return ResponseStore(path, room * (OVERHEAD + 60), TTL_S, clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[ResponseStore]:
    store = make_store(clock)
    yield store
    await store.close()


async def test_response_comes_back_whole(store: ResponseStore) -> None:
    whole = msgspec.structs.replace(response("a", previous="z"), events=b"events" * 100)
    await store.put(whole)
    assert await store.get(ME, "a") == whole
    assert await store.get(ME, "b") is None


async def test_response_of_another_client_is_not_there(store: ResponseStore) -> None:
    await store.put(response("a"))
    assert await store.get(YOU, "a") is None
    assert await store.read_history(YOU, "a") == "a"
    assert not await store.delete(YOU, "a")
    assert await store.get(ME, "a") is not None


async def test_deleted_response_is_gone(store: ResponseStore) -> None:
    await store.put(response("a"))
    assert await store.delete(ME, "a")
    assert not await store.delete(ME, "a")
    assert await store.get(ME, "a") is None


async def test_turns_come_in_their_order(store: ResponseStore) -> None:
    await store.put(response("a"))
    await store.put(response("b", previous="a"))
    await store.put(response("c", previous="b"))
    history = await store.read_history(ME, "c")
    assert isinstance(history, bytes)
    assert msgspec.json.decode(history) == [f"{way} {name}" for name in "abc" for way in ("in", "out")]
    await store.delete(ME, "a")
    assert await store.read_history(ME, "c") == "a"


async def test_old_response_is_not_there(store: ResponseStore, clock: Clock) -> None:
    await store.put(response("a"))
    clock.now += TTL_S - 1
    assert await store.get(ME, "a") is not None
    clock.now += 2
    assert await store.get(ME, "a") is None
    assert not await store.delete(ME, "a")


async def test_conversation_in_use_stays_whole(store: ResponseStore, clock: Clock) -> None:
    await store.put(response("a"))
    clock.now += TTL_S - 1
    await store.put(response("b", previous="a"))
    assert isinstance(await store.read_history(ME, "b"), bytes)
    clock.now += TTL_S - 1
    assert isinstance(await store.read_history(ME, "b"), bytes)


async def test_least_recently_used_response_is_dropped_first(clock: Clock) -> None:
    store = make_store(clock, room=3)
    for name in "abc":
        clock.now += 1
        await store.put(response(name))
    clock.now += 1
    await store.read_history(ME, "a")
    await store.put(response("d"))
    kept = [name for name in "abcd" if await store.get(ME, name)]
    assert kept == ["a", "c", "d"]
    await store.close()


async def test_client_with_the_most_bytes_makes_room(clock: Clock) -> None:
    store = make_store(clock, room=3)
    await store.put(response("mine"))
    for name in "abcdef":
        clock.now += 1
        await store.put(response(name, YOU))
    assert await store.get(ME, "mine") is not None
    assert [name for name in "abcdef" if await store.get(YOU, name)] == ["e", "f"]
    await store.close()


async def test_response_larger_than_the_store_is_not_kept(clock: Clock) -> None:
    store = make_store(clock, room=2)
    await store.put(response("a", size=10_000))
    assert await store.get(ME, "a") is None
    await store.put(response("b"))
    assert await store.get(ME, "b") is not None
    await store.close()


async def test_file_keeps_responses_for_its_owner_only(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "responses.db"
    store = make_store(clock, path, room=2)
    await store.put(response("a"))
    await store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = make_store(clock, path, room=2)
    assert await store.get(ME, "a") is not None
    await store.put(response("b"))
    await store.put(response("c"))
    assert await store.get(ME, "a") is None, "what was there counts"
    await store.close()


async def test_file_belongs_to_one_server(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "responses.db"
    store = make_store(clock, path)
    with pytest.raises(ParallaxError, match="locked"):
        make_store(clock, path)
    await store.close()


def test_file_that_is_no_store_is_refused(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    with pytest.raises(ParallaxError, match="not a database"):
        make_store(clock, path)
    with pytest.raises(ParallaxError, match="cannot be opened"):
        make_store(clock, tmp_path / "missing" / "responses.db")


async def test_response_that_a_full_disk_refuses_is_an_error_and_loses_nothing(clock: Clock, tmp_path: Path) -> None:
    store = make_store(clock, tmp_path / "store", room=10_000)
    await store.put(response("a"))
    store._database.execute("PRAGMA max_page_count = 1")  # SQLite takes the number of pages it has now
    with pytest.raises(ParallaxError, match="the response store cannot be used: database or disk is full"):
        await store.put(response("b", size=100_000))
    assert await store.get(ME, "a") == response("a")
    assert await store.get(ME, "b") is None
    store._database.execute("PRAGMA max_page_count = 10000")
    await store.put(response("b", size=100_000))
    assert await store.get(ME, "b") == response("b", size=100_000)
    await store.close()
