"""Keeps responses as they come, so that they go on when the server is started again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from parallax_core.api import Delta, Finish, TokenLogprob
from parallax_core.api.bodies import ParsedBody

WRITE_S = 0.5
"""Seconds between two writes: what a server that is killed loses of the text is generated again."""


class BegunResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that has begun, and is not known to have ended."""

    id: str
    owner: bytes
    """The client that made it; see `client_id.identify`."""
    model: str
    created_at: int
    """Seconds since 1970."""
    reading: ParsedBody
    """What the engine was asked, and how the answer is written."""


class KeptDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A `Delta` of a response, as it is written."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    ended: Literal["stop", "length", "error", "timeout", "aborted"] | None
    stop_string: str
    finish: Finish | None

    @classmethod
    def of(cls, delta: Delta) -> KeptDelta:
        """Return what is kept of a delta."""
        return cls(
            text=delta.text,
            tokens=delta.tokens,
            logprobs=delta.logprobs,
            ended=delta.ended,
            stop_string=delta.stop_string,
            finish=delta.finish,
        )

    def restore(self) -> Delta:
        """Return the delta."""
        return Delta(
            text=self.text,
            tokens=self.tokens,
            logprobs=self.logprobs,
            ended=self.ended,
            stop_string=self.stop_string,
            finish=self.finish,
        )


class Journal:
    """Writes what has come of one response, in pieces and in order, while it runs."""

    def __init__(self, append: Callable[[bytes], Awaitable[None]]) -> None:
        """Write pieces by ``append``, which is called again only after it has returned, and raises nothing."""
        self._append = append
        self._unwritten: list[KeptDelta] = []
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def add(self, delta: Delta) -> None:
        """Write a delta soon."""
        self._unwritten.append(KeptDelta.of(delta))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write the rest at once."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        await self._flush()

    async def _write(self) -> None:
        await asyncio.sleep(WRITE_S)
        await asyncio.shield(self._flush())

    async def _flush(self) -> None:
        async with self._lock:
            pieces, self._unwritten = self._unwritten, []
            if pieces:
                await self._append(msgspec.msgpack.encode(pieces))


def insert_begun(database: sqlite3.Connection, begun: BegunResponse) -> None:
    """Insert a response that begins."""
    row = (begun.id, begun.created_at, msgspec.msgpack.encode(begun))
    with database:
        database.execute("INSERT INTO begun VALUES (?, ?, ?)", row)


def insert_piece(database: sqlite3.Connection, name: str, piece: bytes) -> None:
    """Insert what has come of a response; no effect if it has ended."""
    query = "INSERT INTO begun_piece (response, data) SELECT id, ? FROM begun WHERE id = ?"
    with database:
        database.execute(query, (piece, name))


def list_begun(database: sqlite3.Connection, since: float) -> list[BegunResponse]:
    """Return the responses that have begun and not ended, and drop those that began before ``since``.

    One that another version of the server has written otherwise is left out.
    """
    with database:
        database.execute("DELETE FROM begun WHERE created < ?", (since,))
    found = []
    for (data,) in database.execute("SELECT data FROM begun ORDER BY rowid"):
        try:
            found.append(msgspec.msgpack.decode(data, type=BegunResponse))
        except msgspec.ValidationError:
            continue
    return found


def read_deltas(database: sqlite3.Connection, name: str) -> list[Delta]:
    """Return what has come of a response."""
    query = "SELECT data FROM begun_piece WHERE response = ? ORDER BY rowid"
    pieces = (msgspec.msgpack.decode(data, type=list[KeptDelta]) for (data,) in database.execute(query, (name,)))
    return [delta.restore() for piece in pieces for delta in piece]


def delete_begun(database: sqlite3.Connection, name: str) -> None:
    """Delete what is kept of a response that ends, within a transaction of the caller."""
    database.execute("DELETE FROM begun WHERE id = ?", (name,))
