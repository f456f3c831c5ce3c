"""Keeps the latest events of a cluster in SQLite, for the time after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from parallax_cluster.node.membership.database import open_database, write_database

SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL
);
"""
VERSION = 1
CONTENT = "the events"
MOST_EVENTS = 20_000
"""The most events that are kept: the latest."""
MOST_TEXT = 2000
"""The most characters of a text."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to a cluster."""

    time: float
    """Seconds since 1970."""
    kind: str
    """``node_joined``, ``node_left``, ``node_drained``, ``node_resumed``, ``plan`` or ``status``."""
    subject: str
    """The node, the machine or the model."""
    text: str = ""
    """What happened, in words."""


class EventStore:
    """The events in a file. Every method raises ParallaxError if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        """Keep events in ``path``."""
        self._path = path

    def add(self, events: Iterable[Event]) -> None:
        """Keep events, and forget the oldest beyond `MOST_EVENTS`."""
        rows = [(each.time, each.kind, each.subject, each.text[:MOST_TEXT]) for each in events]
        with write_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            database.executemany("INSERT INTO event (at, kind, subject, text) VALUES (?, ?, ?, ?)", rows)
            database.execute("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?", (MOST_EVENTS,))

    def find(self, since: float, most: int) -> list[Event]:
        """Return the latest events since a time, the oldest first; at most ``most``."""
        query = "SELECT at, kind, subject, text FROM event WHERE at >= ? ORDER BY id DESC LIMIT ?"
        with open_database(self._path, SCHEMA, VERSION, CONTENT) as database:
            rows = database.execute(query, (since, most)).fetchall()
        return [Event(time=at, kind=kind, subject=subject, text=text) for at, kind, subject, text in reversed(rows)]
