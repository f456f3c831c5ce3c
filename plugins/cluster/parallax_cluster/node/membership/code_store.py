"""Keeps the join codes of this machine's heads in SQLite, and admits machines by them."""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from parallax_cluster.config.home import cluster_file
from parallax_cluster.membership.code_rules import CodeRecord, describe_left, describe_state, find_obstacle
from parallax_cluster.node.membership.database import open_database, write_database
from parallax_core.api import ListeningHead, ParallaxError, UnknownName
from parallax_core.api.node import check_machine

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
LOOK_S, AGAIN_S = 0.005, 0.05
"""The least seconds between two looks whether the file has changed, and before it is read again for the same change."""
LOG_S = 60.0
"""Seconds between two warnings that the codes cannot be read."""
SETTLED_NS = 100_000_000
"""Nanoseconds after a change of the file in which a further one may get the same time."""
CODE_COLUMNS = (
    "proof, created, expires, most_uses, is_revoked, (SELECT COUNT(*) FROM code_use u WHERE u.proof = code.proof)"
)


def open_store() -> CodeStore:
    """Return the codes of this user's heads, as the entry point of ``parallax.join_codes``."""
    return CodeStore(cluster_file())


class CodeStore:
    """The codes of this user's heads; an `Admission` and `JoinCodes`. Safe for threads.

    Another process may make or revoke a code. Every method raises ParallaxError if the file cannot be read or written.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Keep the codes in ``path``; ``clock`` returns the seconds since 1970."""
        self._path = path
        self._clock = clock
        self._codes: Mapping[bytes, CodeRecord] = {}
        """As they were read last, by proof."""
        self._stamp: tuple[int, ...] = ()
        """Of the file when they were read."""
        self._looked = self._log_at = -math.inf
        self._again_at = -math.inf
        """When they are to be read again, although the file looks the same."""
        self._reading = threading.Lock()

    def knows(self, proof: bytes) -> bool:
        """Return whether a code has this proof; see `Admission`. It answers from memory if the file has not changed."""
        return proof in self._recall()

    def check_versions(self, versions: bytes) -> None:
        """Check that this head can work with a machine; see `Admission`."""
        check_machine(versions)

    def admit(self, proof: bytes, key: bytes) -> None:
        """Count a use of a code; see `Admission`. One that no longer admits anybody costs no access to the file.

        Raises:
            ParallaxError: if it does not admit the machine.
        """
        known = self._recall().get(proof)
        if known is not None and (known.is_revoked or self._clock() >= known.expires):
            _check(known, (), key, self._clock())
        with self._writing() as database:
            users = [row[0] for row in database.execute("SELECT key FROM code_use WHERE proof = ?", (proof,))]
            _check(_find(database, proof), users, key, self._clock())
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

    def describe_valid(self) -> dict[str, str]:
        """Return the codes that still admit machines, by name, and which machines; see `JoinCodes`."""
        if not self._path.exists():
            return {}
        now = self._clock()
        valid = [code for code in self.list_codes() if describe_state(code, now) == "valid"]
        return {code.name: f"{describe_left(code)} until {write_time(code.expires)}" for code in valid}

    def revoke(self, name: str) -> None:
        """Revoke the code called ``name``: it admits no further machine.

        Raises:
            UnknownName: if there is none.
        """
        found = [code for code in self.list_codes() if code.name == name]
        if not found:
            raise UnknownName(f"there is no join code {name!r}", "`parallax cluster codes list` shows the codes")
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

    def _recall(self) -> Mapping[bytes, CodeRecord]:
        """Return the codes by proof, read again if the file has changed; by one thread at a time."""
        now = time.monotonic()
        if now < self._looked + LOOK_S or not self._reading.acquire(blocking=False):
            return self._codes
        try:
            stamp = _stamp(self._path)
            if stamp != self._stamp or now >= self._again_at:
                self._codes = {code.proof: code for code in self.list_codes()}
                is_settled = bool(stamp) and time.time_ns() - stamp[0] > SETTLED_NS
                self._stamp, self._again_at = stamp, math.inf if is_settled else now + AGAIN_S
        except ParallaxError as error:
            if now >= self._log_at:
                self._log_at = now + LOG_S
                logger.warning("join codes cannot be read: %s", error.message)
        finally:
            self._looked = now
            self._reading.release()
        return self._codes

    def _writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context with the database, within a transaction that may write."""
        self._looked = self._again_at = -math.inf
        return write_database(self._path, SCHEMA, VERSION, "the join codes")

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context with the database."""
        return open_database(self._path, SCHEMA, VERSION, "the join codes")


def _find(database: sqlite3.Connection, proof: bytes) -> CodeRecord | None:
    row = database.execute(f"SELECT {CODE_COLUMNS} FROM code WHERE proof = ?", (proof,)).fetchone()  # noqa: S608 -- a constant
    return _read(row) if row else None


def _check(code: CodeRecord | None, users: Collection[bytes], key: bytes, now: float) -> None:
    """Raise ParallaxError if a code does not admit a machine; see `find_obstacle`."""
    if obstacle := find_obstacle(code, users, key, now):
        raise ParallaxError(obstacle, "ask for another one: `parallax cluster codes new` on the machine of the server")


def write_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _stamp(path: Path) -> tuple[int, ...]:
    """Return values that change with a file, its mtime in nanoseconds first; empty without a file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


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
