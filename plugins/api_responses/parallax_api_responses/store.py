"""Keeps responses in SQLite for a limited time and size; each belongs to its client."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from parallax_api_responses.begun import (
    BegunResponse,
    delete_begun,
    insert_begun,
    insert_piece,
    list_begun,
    read_deltas,
)
from parallax_api_responses.kept_events import BLOCK, EventPlace, find_event, pack_events, unpack_block
from parallax_api_responses.store_schema import insert_blocks, open_database
from parallax_core.api import Delta, ParallaxError, UnknownName
from parallax_core.api.bodies import to_json
from parallax_core.api.dialect import is_full

T = TypeVar("T")

MOST_TURNS = 10_000
"""The most responses of one conversation."""
OVERHEAD = 200
"""The bytes that a row takes besides its content, about."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response with what is needed to continue its conversation."""

    id: str
    owner: bytes
    """The client that made it; see `client_id.identify`."""
    previous: str | None
    """The response that it continues."""
    body: bytes
    """The response, as JSON."""
    input: bytes
    """The parts of its own input, as a JSON list."""
    has_events: bool = False
    """Whether its events are kept, since it ran in the background."""


class LargeHistory(Exception):
    """A conversation is larger than the input of a request may be."""


class ResponseOutput(msgspec.Struct):
    """The part of a response that the next one continues."""

    output: list[msgspec.Raw]


class ResponseStore:
    """Responses in a file or in memory. SQLite runs on a thread of its own; every method returns when it is done.

    Every method raises ParallaxError if the file cannot be read or written, such as on a full disk. The least
    recently used response of the client with the most bytes is dropped first.
    """

    def __init__(self, path: Path | None, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        """Open the store.

        Args:
            path: the file; None: memory.
            max_bytes: the size of all responses.
            ttl_s: seconds after its last use for which a response is kept.
            clock: returns the seconds since 1970.

        Raises:
            ParallaxError: if the file cannot be opened, is no store, or another server uses it.
        """
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="response-store")
        self._database = open_database(path)
        self.is_durable = path is not None
        """Whether it is there when the server is started again."""
        self.begun = self._list_begun()
        """The responses that the server before this one has not ended."""
        self._total = int(self._database.execute("SELECT COALESCE(SUM(size), 0) FROM response").fetchone()[0])

    async def put(self, response: StoredResponse, events: Sequence[bytes] | None = None) -> None:
        """Keep a response, and its events as sent to clients, if it ran in the background."""
        await self._run(lambda: self._put(response, events))

    async def begin(self, response: BegunResponse) -> None:
        """Keep a response that begins, until it is put or forgotten."""
        await self._run(lambda: insert_begun(self._database, response))

    async def append(self, name: str, piece: bytes) -> None:
        """Keep what has come of a response that has begun; see `Journal`."""
        await self._run(lambda: insert_piece(self._database, name, piece))

    async def read_begun(self, name: str) -> list[Delta]:
        """Return what has come of a response that has begun."""
        return await self._run(lambda: read_deltas(self._database, name))

    async def get(self, owner: bytes, name: str) -> StoredResponse | None:
        """Return a response of a client, if it is kept."""
        return await self._run(lambda: self._get(owner, name))

    async def read_events(self, owner: bytes, name: str, first: int) -> AsyncIterator[bytes]:
        """Yield the events of a response from number ``first`` on, in pieces of at most `BLOCK` bytes.

        Raises:
            UnknownName: if it is dropped before the end.
        """
        place = await self._run(lambda: self._find_event(owner, name, first))
        for number in range(place.start // BLOCK, -(-place.total // BLOCK)):
            piece = await self._run(partial(self._get_block, name, number))
            yield piece[max(0, place.start - number * BLOCK) :]

    async def delete(self, owner: bytes, name: str) -> bool:
        """Delete a response of a client; return whether it was kept."""
        return await self._run(lambda: self._delete(owner, name))

    async def read_history(self, owner: bytes, name: str, most_bytes: int) -> bytes | str:
        """Return the input and the output of a response and of those that it continues, in their order, as a JSON list.

        Or the id of one that is not kept. All of them count as used.

        Raises:
            LargeHistory: if they have more than ``most_bytes``.
        """
        return await self._run(lambda: self._read_history(owner, name, most_bytes))

    async def close(self) -> None:
        """Close the store. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._database.close()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise ParallaxError(f"the response store cannot be used: {error}") from error

    def _list_begun(self) -> list[BegunResponse]:
        try:
            return list_begun(self._database, self._clock() - self._ttl_s)
        except sqlite3.Error as error:
            if not is_full(error):
                raise ParallaxError(f"the response store cannot be used: {error}") from error
            return []

    def _put(self, response: StoredResponse, events: Sequence[bytes] | None) -> None:
        lengths, blocks = (None, ()) if events is None else pack_events(events)
        size = OVERHEAD + sum(map(len, (response.body, response.input, lengths or b"", *blocks)))
        row = (response.id, response.owner, response.previous, self._clock(), size, response.body, response.input)
        before = self._total
        try:
            with self._database:
                self._drop_old()
                self._database.execute("INSERT INTO response VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, lengths))
                insert_blocks(self._database, response.id, blocks)
                delete_begun(self._database, response.id)
                self._total += size
                while self._total > self._max_bytes:
                    self._drop_one()
        except sqlite3.Error:
            self._total = before
            raise

    def _get(self, owner: bytes, name: str) -> StoredResponse | None:
        query = "SELECT previous, body, input, event_lengths IS NOT NULL FROM response "
        query += "WHERE id = ? AND owner = ? AND used >= ?"
        row = self._database.execute(query, (name, owner, self._clock() - self._ttl_s)).fetchone()
        if row is None:
            return None
        previous, body, parts, has_events = row
        return StoredResponse(
            id=name, owner=owner, previous=previous, body=body, input=parts, has_events=bool(has_events)
        )

    def _find_event(self, owner: bytes, name: str, number: int) -> EventPlace:
        query = "SELECT event_lengths FROM response WHERE id = ? AND owner = ?"
        row = self._database.execute(query, (name, owner)).fetchone()
        if row is None or row[0] is None:
            raise _dropped(name)
        return find_event(row[0], number)

    def _get_block(self, name: str, number: int) -> bytes:
        query = "SELECT data FROM event_block WHERE response = ? AND number = ?"
        row = self._database.execute(query, (name, number)).fetchone()
        if row is None:
            raise _dropped(name)
        return unpack_block(row[0])

    def _delete(self, owner: bytes, name: str) -> bool:
        query = "DELETE FROM response WHERE id = ? AND owner = ? AND used >= ? RETURNING size"
        with self._database:
            row = self._database.execute(query, (name, owner, self._clock() - self._ttl_s)).fetchone()
        self._total -= row[0] if row else 0
        return row is not None

    def _read_history(self, owner: bytes, name: str, room: int) -> bytes | str:
        found: list[StoredResponse] = []
        at: str | None = name
        while at is not None:
            turn = self._get(owner, at) if len(found) < MOST_TURNS else None
            if turn is None:
                return at
            room -= len(turn.input) + len(turn.body)
            if room < 0:
                raise LargeHistory
            found.append(turn)
            at = turn.previous
        self._note_use(found)
        parts: list[msgspec.Raw] = []
        for turn in found[::-1]:
            parts += msgspec.json.decode(turn.input, type=list[msgspec.Raw])
            parts += msgspec.json.decode(turn.body, type=ResponseOutput).output
        return to_json(parts)

    def _note_use(self, found: Sequence[StoredResponse]) -> None:
        now = self._clock()
        try:
            with self._database:
                rows = [(now, turn.id) for turn in found]
                self._database.executemany("UPDATE response SET used = ? WHERE id = ?", rows)
        except sqlite3.Error as error:
            if not is_full(error):  # else they are dropped sooner than others
                raise

    def _drop_old(self) -> None:
        query = "DELETE FROM response WHERE used < ? RETURNING size"
        rows = self._database.execute(query, (self._clock() - self._ttl_s,)).fetchall()
        self._total -= sum(size for (size,) in rows)

    def _drop_one(self) -> None:
        """Drop the least recently used response of the client with the most bytes."""
        largest = "SELECT owner FROM response GROUP BY owner ORDER BY SUM(size) DESC LIMIT 1"
        oldest = f"SELECT id FROM response WHERE owner = ({largest}) ORDER BY used, rowid LIMIT 1"  # noqa: S608 -- constants
        query = f"DELETE FROM response WHERE id = ({oldest}) RETURNING size"  # noqa: S608 -- the same
        self._total -= self._database.execute(query).fetchone()[0]


def _dropped(name: str) -> UnknownName:
    return UnknownName(f"the response '{name}' is not kept any more")
