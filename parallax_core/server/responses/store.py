"""Keeps responses in SQLite, for a limited time and up to a limited size; each belongs to the client that made it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from parallax_core.base.errors import ParallaxError
from parallax_core.server.json_pieces import to_json

T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS response (
    id TEXT PRIMARY KEY, owner BLOB NOT NULL, previous TEXT, used REAL NOT NULL, size INTEGER NOT NULL,
    body BLOB NOT NULL, input BLOB NOT NULL, events BLOB
);
CREATE INDEX IF NOT EXISTS response_used ON response (used);
CREATE INDEX IF NOT EXISTS response_owner ON response (owner, used);
"""
VERSION = 1
"""The version of the schema, which SQLite keeps as ``user_version``."""
MOST_TURNS = 10_000
"""The most responses of one conversation."""
MEMORY = ":memory:"
"""SQLite's name of a database that is in memory only."""
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
    events: bytes | None = None
    """Its events as sent to clients, if it ran in the background."""


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
        self._database = _open(path)
        self._total = int(self._database.execute("SELECT COALESCE(SUM(size), 0) FROM response").fetchone()[0])

    async def put(self, response: StoredResponse) -> None:
        """Keep a response."""
        await self._run(lambda: self._put(response))

    async def get(self, owner: bytes, name: str) -> StoredResponse | None:
        """Return a response of a client, if it is kept."""
        return await self._run(lambda: self._get(owner, name))

    async def delete(self, owner: bytes, name: str) -> bool:
        """Delete a response of a client; return whether it was kept."""
        return await self._run(lambda: self._delete(owner, name))

    async def read_history(self, owner: bytes, name: str) -> bytes | str:
        """Return the input and the output of a response and of those that it continues, in their order, as a JSON list.

        Or the id of one that is not kept. All of them count as used.
        """
        return await self._run(lambda: self._read_history(owner, name))

    async def close(self) -> None:
        """Close the store. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._database.close()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise ParallaxError(f"the response store cannot be used: {error}") from error

    def _put(self, response: StoredResponse) -> None:
        events = None if response.events is None else zlib.compress(response.events)
        contents = (response.body, response.input, events or b"")
        size = OVERHEAD + sum(map(len, contents))
        row = (response.id, response.owner, response.previous, self._clock(), size, *contents[:2], events)
        before = self._total
        try:
            with self._database:
                self._drop_old()
                self._database.execute("INSERT INTO response VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._total += size
                while self._total > self._max_bytes:
                    self._drop_one()
        except sqlite3.Error:
            self._total = before
            raise

    def _get(self, owner: bytes, name: str) -> StoredResponse | None:
        query = "SELECT previous, body, input, events FROM response WHERE id = ? AND owner = ? AND used >= ?"
        row = self._database.execute(query, (name, owner, self._clock() - self._ttl_s)).fetchone()
        if row is None:
            return None
        previous, body, parts, events = row
        unpacked = None if events is None else zlib.decompress(events)
        return StoredResponse(id=name, owner=owner, previous=previous, body=body, input=parts, events=unpacked)

    def _delete(self, owner: bytes, name: str) -> bool:
        query = "DELETE FROM response WHERE id = ? AND owner = ? AND used >= ? RETURNING size"
        with self._database:
            row = self._database.execute(query, (name, owner, self._clock() - self._ttl_s)).fetchone()
        self._total -= row[0] if row else 0
        return row is not None

    def _read_history(self, owner: bytes, name: str) -> bytes | str:
        found: list[StoredResponse] = []
        at: str | None = name
        while at is not None:
            turn = self._get(owner, at) if len(found) < MOST_TURNS else None
            if turn is None:
                return at
            found.append(turn)
            at = turn.previous
        with self._database:
            now = self._clock()
            self._database.executemany("UPDATE response SET used = ? WHERE id = ?", [(now, turn.id) for turn in found])
        parts: list[msgspec.Raw] = []
        for turn in found[::-1]:
            parts += msgspec.json.decode(turn.input, type=list[msgspec.Raw])
            parts += msgspec.json.decode(turn.body, type=ResponseOutput).output
        return to_json(parts)

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


def _open(path: Path | None) -> sqlite3.Connection:
    """Return a connection that no other process can use at the same time, with the tables made."""
    hint = "choose another --response-store, or end the server that uses it"
    try:
        if path is not None:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # its owner's only: it has prompts
        database = sqlite3.connect(MEMORY if path is None else path, timeout=0.5, check_same_thread=False)
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, VERSION}:
            raise ParallaxError(f"the response store {path} has version {version}, and this is {VERSION}", hint)
        database.executescript(f"BEGIN EXCLUSIVE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
    except (OSError, sqlite3.Error) as error:
        raise ParallaxError(f"the response store {path} cannot be opened: {error}", hint) from error
    return database
