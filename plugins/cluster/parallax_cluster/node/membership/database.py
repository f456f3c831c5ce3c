"""Small SQLite files of a head, for their owner only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from parallax_core.api import ParallaxError

BUSY_S = 2.0
"""Seconds to wait for another process that writes."""


@contextmanager
def open_database(path: Path, schema: str, version: int, content: str) -> Iterator[sqlite3.Connection]:
    """Yield the database in a file, created if missing; reads hardly wait for other processes.

    Args:
        path: the file.
        schema: statements that make what is not there yet.
        version: of the schema, which SQLite keeps as ``user_version``.
        content: what is in it, for errors, such as ``the join codes``.

    Raises:
        ParallaxError: if it cannot be read or written, in the block too.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as database:
            if database.execute("PRAGMA user_version").fetchone()[0] != version:
                database.executescript(f"{schema} PRAGMA user_version = {version};")
            yield database
    except (OSError, sqlite3.Error) as error:
        raise ParallaxError(f"{content} in {path} cannot be used: {error}", "is the disk full?") from error


@contextmanager
def write_database(path: Path, schema: str, version: int, content: str) -> Iterator[sqlite3.Connection]:
    """Yield the database in a file within a transaction that may write; see `open_database`."""
    with open_database(path, schema, version, content) as database:
        database.execute("BEGIN IMMEDIATE")
        with database:
            yield database
