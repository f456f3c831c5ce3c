"""Keeps the join codes of this machine's heads in SQLite, and admits machines by them."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.cluster.membership.code_rules import CodeRecord, find_obstacle
from parallax_core.node.membership.database import open_database, write_database
from parallax_core.node.versions import check_machine

logger = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS code (
    proof BLOB PRIMARY KEY, created REAL NOT NULL, expires REAL NOT NULL, most_uses INTEGER NOT NULL,
    is_revoked INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS code_use (proof BLOB, key BLOB, at REAL NOT NULL, PRIMARY KEY (proof, key));
CREATE TABLE IF NOT EXISTS head (one INTEGER PRIMARY KEY CHECK (one = 1), transport TEXT NOT NULL, head BLOB NOT NULL);
"""
VERSION = 1
"""The version of the schema, which SQLite keeps as ``user_version``."""
KEPT_S = 30 * 86400.0
"""Seconds for which an expired code is remembered, so that whoever uses it is told that it has expired."""
CODE_COLUMNS = (
    "proof, created, expires, most_uses, is_revoked, (SELECT COUNT(*) FROM code_use u WHERE u.proof = code.proof)"
)


class ListeningHead(NamedTuple):
    """The head that listened last on this machine, which new codes are for."""

    transport: str
    head: bytes
    """Its description; see `JoinMethod`."""


class CodeStore:
    """The codes of this user's heads; an `Admission`. Read anew each time, so that another process may revoke one.

    Every method raises ParallaxError if the file cannot be read or written.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Keep the codes in ``path``; ``clock`` returns the seconds since 1970."""
        self._path = path
        self._clock = clock

    def knows(self, proof: bytes) -> bool:
        """Return whether a code has this proof; see `Admission`. False if the file cannot be read."""
        try:
            return self._find(proof) is not None
        except ParallaxError as error:
            logger.warning("join codes cannot be read: %s", error.message)
            return False

    def check_versions(self, versions: bytes) -> None:
        """Check that this head can work with a machine; see `Admission`."""
        check_machine(versions)

    def admit(self, proof: bytes, key: bytes) -> None:
        """Count a use of a code; see `Admission`.

        Raises:
            ParallaxError: if it does not admit the machine.
        """
        with self._writing() as database:
            code = _find(database, proof)
            users = [row[0] for row in database.execute("SELECT key FROM code_use WHERE proof = ?", (proof,))]
            if obstacle := find_obstacle(code, users, key, self._clock()):
                raise ParallaxError(obstacle, "ask for another one: `parallax codes new` on the machine of the server")
            database.execute("INSERT OR IGNORE INTO code_use VALUES (?, ?, ?)", (proof, key, self._clock()))

    def add(self, proof: bytes, lifetime_s: float, most_uses: int) -> CodeRecord:
        """Keep a new code, which expires after ``lifetime_s`` and admits ``most_uses`` machines; 0: any number."""
        now = self._clock()
        code = CodeRecord(proof=proof, created=now, expires=now + lifetime_s, most_uses=most_uses)
        with self._writing() as database:
            old = (now - KEPT_S,)
            database.execute("DELETE FROM code_use WHERE proof IN (SELECT proof FROM code WHERE expires < ?)", old)
            database.execute("DELETE FROM code WHERE expires < ?", old)
            row = (code.proof, code.created, code.expires, code.most_uses)
            database.execute("INSERT INTO code (proof, created, expires, most_uses) VALUES (?, ?, ?, ?)", row)
        return code

    def list_codes(self) -> list[CodeRecord]:
        """Return all codes, the newest first."""
        with self._open() as database:
            return [_read(row) for row in database.execute(f"SELECT {CODE_COLUMNS} FROM code ORDER BY created DESC")]  # noqa: S608 -- a constant

    def revoke(self, name: str) -> None:
        """Have the code called ``name`` admit no further machine.

        Raises:
            UnknownName: if there is none.
        """
        found = [code for code in self.list_codes() if code.name == name]
        if not found:
            raise UnknownName(f"there is no join code {name!r}", "`parallax codes list` shows the codes")
        with self._writing() as database:
            database.executemany("UPDATE code SET is_revoked = 1 WHERE proof = ?", [(code.proof,) for code in found])

    def note_head(self, head: ListeningHead) -> None:
        """Note which head new codes are for."""
        with self._writing() as database:
            database.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", head)

    def find_head(self) -> ListeningHead | None:
        """Return the head that new codes are for; None: none has listened yet."""
        with self._open() as database:
            row = database.execute("SELECT transport, head FROM head").fetchone()
        return ListeningHead(*row) if row else None

    def _find(self, proof: bytes) -> CodeRecord | None:
        with self._open() as database:
            return _find(database, proof)

    def _writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context with the database, within a transaction that may write."""
        return write_database(self._path, SCHEMA, VERSION, "the join codes")

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context with the database."""
        return open_database(self._path, SCHEMA, VERSION, "the join codes")


def _find(database: sqlite3.Connection, proof: bytes) -> CodeRecord | None:
    row = database.execute(f"SELECT {CODE_COLUMNS} FROM code WHERE proof = ?", (proof,)).fetchone()  # noqa: S608 -- a constant
    return _read(row) if row else None


def _read(row: tuple[bytes, float, float, int, int, int]) -> CodeRecord:
    proof, created, expires, most_uses, is_revoked, num_uses = row
    return CodeRecord(
        proof=proof,
        created=created,
        expires=expires,
        most_uses=most_uses,
        is_revoked=bool(is_revoked),
        num_uses=num_uses,
    )
