"""Opens the database of kept responses, and converts one that an earlier version has made."""

from __future__ import annotations

import os
import re
import sqlite3
import zlib
from pathlib import Path

from parallax_api_responses.kept_events import pack_events
from parallax_core.api import ParallaxError

VERSION = 3
"""The version of the schema, which SQLite keeps as ``user_version``."""
RESPONSES = """
CREATE TABLE IF NOT EXISTS response (
    id TEXT PRIMARY KEY, owner BLOB NOT NULL, previous TEXT, used REAL NOT NULL, size INTEGER NOT NULL,
    body BLOB NOT NULL, input BLOB NOT NULL, event_lengths BLOB
);
CREATE INDEX IF NOT EXISTS response_used ON response (used);
CREATE INDEX IF NOT EXISTS response_owner ON response (owner, used);
"""
BLOCKS = """
CREATE TABLE IF NOT EXISTS event_block (
    response TEXT NOT NULL REFERENCES response (id) ON DELETE CASCADE, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (response, number)
);
"""
BEGUN = """
CREATE TABLE IF NOT EXISTS begun (id TEXT PRIMARY KEY, created REAL NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS begun_piece (
    response TEXT NOT NULL REFERENCES begun (id) ON DELETE CASCADE, data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS begun_piece_response ON begun_piece (response);
"""
MEMORY = ":memory:"
"""SQLite's name of a database that is in memory only."""
DIGEST_BYTES = 32
"""In version 1, an owner of this length is a key."""
END = re.compile(rb"(?<=\n\n)")
"""The end of an event."""


def open_database(path: Path | None) -> sqlite3.Connection:
    """Return a connection that no other process can use at the same time, with the tables made; None: in memory.

    Raises:
        ParallaxError: if the file cannot be opened, is no store, or another server uses it.
    """
    hint = "choose another response_store, or end the server that uses it"
    try:
        if path is not None:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # its owner's only: it has prompts
        database = sqlite3.connect(MEMORY if path is None else path, timeout=0.5, check_same_thread=False)
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA foreign_keys = ON")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in range(VERSION + 1):
            raise ParallaxError(f"the response store {path} has version {version}, and this is {VERSION}", hint)
        if version == 1:
            _convert(database)
        if version in {1, 2}:
            database.executescript(f"BEGIN EXCLUSIVE;{BEGUN}PRAGMA user_version = {VERSION};COMMIT;")
        if version == 0:  # what is there already can be read on a full disk, too
            database.executescript(f"BEGIN EXCLUSIVE;{RESPONSES}{BLOCKS}{BEGUN}PRAGMA user_version = {VERSION};COMMIT;")
        database.execute("SELECT 1 FROM response LIMIT 1")  # locks the file
    except (OSError, sqlite3.Error) as error:
        raise ParallaxError(f"the response store {path} cannot be opened: {error}", hint) from error
    return database


def insert_blocks(database: sqlite3.Connection, response: str, blocks: tuple[bytes, ...]) -> None:
    """Insert the blocks of the events of a response."""
    rows = ((response, number, block) for number, block in enumerate(blocks))
    database.executemany("INSERT INTO event_block VALUES (?, ?, ?)", rows)


def _convert(database: sqlite3.Connection) -> None:
    """Convert version 1, where events were compressed as a whole and owners had no kind."""
    with database:
        database.execute("BEGIN EXCLUSIVE")
        database.execute("ALTER TABLE response RENAME COLUMN events TO event_lengths")
        database.execute(BLOCKS)
        rows = database.execute("SELECT id, owner FROM response").fetchall()
        for name, owner in rows:
            kind = b"key:" if len(owner) == DIGEST_BYTES else b"address:"
            database.execute("UPDATE response SET owner = ? WHERE id = ?", (kind + owner, name))
            _convert_events(database, name)
        database.execute("PRAGMA user_version = 2")


def _convert_events(database: sqlite3.Connection, name: str) -> None:
    [data] = database.execute("SELECT event_lengths FROM response WHERE id = ?", (name,)).fetchone()
    if data is not None:
        packed = pack_events([event for event in END.split(zlib.decompress(data)) if event])
        insert_blocks(database, name, packed.blocks)
        database.execute("UPDATE response SET event_lengths = ? WHERE id = ?", (packed.lengths, name))
