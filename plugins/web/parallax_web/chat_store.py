"""Keeps conversations in a file, each of one client."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from parallax_core.api import ParallaxError
from parallax_core.api.dialect import ChangeRefused, ResponseModel

VERSION = 1
"""The version of the schema, which SQLite keeps as ``user_version``."""
SCHEMA = f"""
BEGIN EXCLUSIVE;
CREATE TABLE chat (
    owner BLOB NOT NULL, id TEXT NOT NULL, title TEXT NOT NULL, folder TEXT NOT NULL, updated REAL NOT NULL,
    content BLOB NOT NULL, PRIMARY KEY (owner, id)
);
PRAGMA user_version = {VERSION};
COMMIT;
"""
OVERHEAD = 200
"""The bytes that a conversation takes besides its content, about."""
MOST_CHATS = 100_000
"""The most conversations of a client."""


class ChatHeading(ResponseModel):
    """What a list shows of a conversation."""

    id: str
    title: str
    folder: str
    updated: float
    """When it was changed, as its client says: in milliseconds since 1970."""


class ChatReply(ChatHeading):
    """A conversation."""

    content: msgspec.Raw
    """What its client has sent: a JSON object."""


class ChatStore:
    """The conversations of all clients. Methods may wait for the disk; any thread may call.

    Every method raises ParallaxError if the file cannot be read or written, such as on a full disk.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Open the file, and keep up to ``most_bytes`` of each client.

        Raises:
            ParallaxError: if the file cannot be opened, is no store, or another server uses it.
        """
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._database = open_database(path)

    def list(self, owner: bytes) -> list[ChatHeading]:
        """Return the headings of a client's conversations, the latest first."""
        query = "SELECT id, title, folder, updated FROM chat WHERE owner = ? ORDER BY updated DESC"
        with self._using() as database:
            return [ChatHeading(*row) for row in database.execute(query, (owner,))]

    def read(self, owner: bytes, name: str) -> ChatReply | None:
        """Return a conversation of a client, if it is kept."""
        query = "SELECT title, folder, updated, content FROM chat WHERE owner = ? AND id = ?"
        with self._using() as database:
            row = database.execute(query, (owner, name)).fetchone()
        if row is None:
            return None
        title, folder, updated, content = row
        return ChatReply(name, title, folder, updated, msgspec.Raw(content))

    def write(self, owner: bytes, heading: ChatHeading, base: float | None, content: bytes) -> None:
        """Keep a conversation, in place of the one with this id.

        Raises:
            ChangeRefused: if the one that is kept is another than that of ``base``, when it was changed, or the client
                has too much.
        """
        with self._using() as database:
            kept = database.execute(
                "SELECT updated FROM chat WHERE owner = ? AND id = ?", (owner, heading.id)
            ).fetchone()
            if kept and kept[0] != base:
                message = "another version of this conversation is kept than the one that 'base' names"
                raise ChangeRefused(message, "read it, and send what comes of both")
            others = "SELECT COUNT(*), COALESCE(SUM(LENGTH(content) + ?), 0) FROM chat WHERE owner = ? AND id <> ?"
            count, used = database.execute(others, (OVERHEAD, owner, heading.id)).fetchone()
            if used + len(content) + OVERHEAD > self._most_bytes or count >= MOST_CHATS:
                message = f"the conversations of a client may have {self._most_bytes / 1e6:g} MB"
                raise ChangeRefused(message, "delete some, or have the server started with a larger web.chats_size")
            row = (owner, heading.id, heading.title, heading.folder, heading.updated, content)
            database.execute("INSERT OR REPLACE INTO chat VALUES (?, ?, ?, ?, ?, ?)", row)

    def delete(self, owner: bytes, name: str | None = None) -> int:
        """Delete a conversation of a client, or all of them; return how many there were."""
        query = "DELETE FROM chat WHERE owner = ? AND id = COALESCE(?, id)"
        with self._using() as database:
            return database.execute(query, (owner, name)).rowcount

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, self._database:
                yield self._database
        except sqlite3.Error as error:
            raise ParallaxError(f"the file of conversations cannot be used: {error}") from error


def open_database(path: Path) -> sqlite3.Connection:
    """Return a connection that no other process can use at the same time, with the table made.

    Raises:
        ParallaxError: if the file cannot be opened, is no store, or another server uses it.
    """
    hint = "choose another file for web.chats, or end the server that uses it"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # its owner's only: it has prompts
        database = sqlite3.connect(path, timeout=0.5, check_same_thread=False)
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "secure_delete = ON"):
            database.execute(f"PRAGMA {pragma}")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, VERSION}:
            database.close()
            raise ParallaxError(f"the file of conversations {path} has version {version}, and this is {VERSION}", hint)
        if version == 0:
            database.executescript(SCHEMA)
        database.execute("SELECT 1 FROM chat LIMIT 1")  # locks the file
    except (OSError, sqlite3.Error) as error:
        raise ParallaxError(f"the file of conversations {path} cannot be opened: {error}", hint) from error
    return database
