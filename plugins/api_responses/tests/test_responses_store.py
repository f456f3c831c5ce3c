from __future__ import annotations

import random
import sqlite3
import stat
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from parallax_api_responses.kept_events import BLOCK
from parallax_api_responses.store import OVERHEAD, LargeHistory, ResponseStore, StoredResponse
from parallax_core.base.errors import ParallaxError, UnknownName
from plugins.api_responses.tests.responses_client import note_databases

ME, YOU = b"me", b"you"
TTL_S = 100.0
MOST = 10**9
"""More bytes than any history of these tests has."""


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


async def test_thread_ends_with_its_store(clock: Clock) -> None:
    before = set(threading.enumerate())
    store = make_store(clock)
    await store.put(response("a"))
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("response-store")]
    await store.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("response-store")]


async def test_response_comes_back_whole(store: ResponseStore) -> None:
    whole = response("a", previous="z")
    await store.put(whole)
    assert await store.get(ME, "a") == whole
    assert await store.get(ME, "b") is None


async def test_events_come_back_from_any_of_them_in_pieces(clock: Clock) -> None:
    store = make_store(clock, room=100_000)
    generator = random.Random(0)  # so that they do not compress, and the blocks are of a large size
    events = [b"event: %d\ndata: %b\n\n" % (n, generator.randbytes(generator.choice((3, 900)))) for n in range(1500)]
    events[700] = b"data: %b\n\n" % generator.randbytes(3 * BLOCK)
    await store.put(response("a"), events)
    kept = await store.get(ME, "a")
    assert kept is not None
    assert kept.has_events
    for first in (0, 1, 699, 700, 701, 1499, 1500, 9999):
        pieces = [piece async for piece in store.read_events(ME, "a", first)]
        assert b"".join(pieces) == b"".join(events[first:])
        assert all(len(piece) <= BLOCK for piece in pieces)
    await store.close()


async def test_events_of_another_client_are_not_there(store: ResponseStore) -> None:
    await store.put(response("a"), [b"one"])
    await store.put(response("b"))
    for owner, name in ((YOU, "a"), (ME, "b"), (ME, "c")):
        with pytest.raises(UnknownName):
            [piece async for piece in store.read_events(owner, name, 0)]


async def test_events_of_a_response_that_is_dropped_end_with_an_error(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = note_databases(monkeypatch)
    store = make_store(clock, room=100_000)
    await store.put(response("a"), [b"x" * (2 * BLOCK)])
    reading = store.read_events(ME, "a", 0)
    assert len(await anext(reading)) == BLOCK
    assert await store.delete(ME, "a")
    with pytest.raises(UnknownName, match="not kept any more"):
        await anext(reading)
    [[left]] = databases[0].execute("SELECT COUNT(*) FROM event_block").fetchall()
    assert left == 0
    await store.close()


async def test_response_that_was_deleted_takes_no_room(clock: Clock) -> None:
    store = make_store(clock, room=2)
    for name in "abcdef":
        await store.put(response(name))
        assert await store.delete(ME, name)
    for name in "yz":
        await store.put(response(name))
    assert [await store.get(ME, name) for name in "yz"] == [response(name) for name in "yz"]
    await store.close()


async def test_events_count_as_the_size_of_their_response(clock: Clock) -> None:
    store = make_store(clock, room=10)
    await store.put(response("a"))
    await store.put(response("b"), [random.Random(0).randbytes(10 * (OVERHEAD + 60))])
    assert [name for name in "ab" if await store.get(ME, name)] == []
    await store.close()


async def test_conversation_has_a_bound(store: ResponseStore) -> None:
    await store.put(response("a", size=500))
    await store.put(response("b", previous="a", size=500))
    history = await store.read_history(ME, "b", 1200)
    assert isinstance(history, bytes)
    with pytest.raises(LargeHistory):
        await store.read_history(ME, "b", 1000)


async def test_file_of_an_earlier_version_is_converted(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "responses.db"
    old = sqlite3.connect(path)
    old.executescript(
        "CREATE TABLE response (id TEXT PRIMARY KEY, owner BLOB NOT NULL, previous TEXT, used REAL NOT NULL, size "
        "INTEGER NOT NULL, body BLOB NOT NULL, input BLOB NOT NULL, events BLOB); PRAGMA user_version = 1;"
    )
    events = [b"data: %d\n\n" % number for number in range(5)]
    digest = bytes(range(32))
    for name, owner, kept in (("a", digest, zlib.compress(b"".join(events))), ("b", b"127.0.0.1", None)):
        one = response(name)
        row = (name, owner, None, clock(), 100, one.body, one.input, kept)
        old.execute("INSERT INTO response VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    old.commit()
    old.close()
    for _ in range(2):
        store = make_store(clock, path)
        assert [piece async for piece in store.read_events(b"key:" + digest, "a", 2)] == [b"".join(events[2:])]
        found = await store.get(b"address:127.0.0.1", "b")
        assert found == response("b", b"address:127.0.0.1")
        await store.close()
        with closing(sqlite3.connect(path)) as converted:
            assert converted.execute("PRAGMA user_version").fetchone() == (3,)
            converted.executescript("DROP TABLE begun_piece; DROP TABLE begun; PRAGMA user_version = 2;")  # as 2 was


@pytest.mark.parametrize("version", [4, 9])
def test_file_of_a_later_version_is_refused(tmp_path: Path, clock: Clock, version: int) -> None:
    path = tmp_path / "responses.db"
    later = sqlite3.connect(path)
    later.execute(f"PRAGMA user_version = {version}")
    later.close()
    with pytest.raises(ParallaxError, match=f"has version {version}, and this is 3"):
        make_store(clock, path)


async def test_response_of_another_client_is_not_there(store: ResponseStore) -> None:
    await store.put(response("a"))
    assert await store.get(YOU, "a") is None
    assert await store.read_history(YOU, "a", MOST) == "a"
    assert not await store.delete(YOU, "a")
    assert await store.get(ME, "a") is not None


async def test_deleted_response_is_gone(store: ResponseStore) -> None:
    await store.put(response("a"))
    assert await store.delete(ME, "a")
    assert not await store.delete(ME, "a")
    assert await store.get(ME, "a") is None


async def test_turns_come_in_their_order_and_so_many(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(response("a"))
    await store.put(response("b", previous="a"))
    await store.put(response("c", previous="b"))
    history = await store.read_history(ME, "c", MOST)
    assert msgspec.json.decode(history) == [f"{way} {name}" for name in "abc" for way in ("in", "out")]
    for most, found in ((3, history), (2, "a")):
        monkeypatch.setattr("parallax_api_responses.store.MOST_TURNS", most)
        assert await store.read_history(ME, "c", MOST) == found
    await store.delete(ME, "a")
    assert await store.read_history(ME, "c", MOST) == "a"


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
    assert isinstance(await store.read_history(ME, "b", MOST), bytes)
    clock.now += TTL_S - 1
    assert isinstance(await store.read_history(ME, "b", MOST), bytes)


async def test_least_recently_used_response_is_dropped_first(clock: Clock) -> None:
    store = make_store(clock, room=3)
    for name in "abc":
        clock.now += 1
        await store.put(response(name))
    clock.now += 1
    await store.read_history(ME, "a", MOST)
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


async def test_response_that_a_full_disk_refuses_is_an_error_and_loses_nothing(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = note_databases(monkeypatch)
    store = make_store(clock, tmp_path / "store", room=10_000)
    await store.put(response("a"))
    databases[0].execute("PRAGMA max_page_count = 1")  # SQLite takes the number of pages it has now
    with pytest.raises(ParallaxError, match="the response store cannot be used: database or disk is full"):
        await store.put(response("b", size=100_000))
    assert await store.get(ME, "a") == response("a")
    assert await store.get(ME, "b") is None
    assert await store.read_history(ME, "a", 1000) == b'["in a","out a"]'
    databases[0].execute("PRAGMA max_page_count = 10000")
    await store.put(response("b", size=100_000))
    assert await store.get(ME, "b") == response("b", size=100_000)
    await store.close()
