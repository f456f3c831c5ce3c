"""Holds the API keys that a server accepts, and the role of each."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from parallax_core.base.errors import UsageError

Role = Literal["user", "metrics", "admin"]
"""What a key allows: inference, reading ``/metrics``, or everything."""

ROLES: tuple[Role, ...] = get_args(Role)
LOOK_S = 1.0
"""The shortest interval between two checks of a key file, in seconds."""
SETTLE_S = 0.5
"""Seconds after a change during which a key file may still be incomplete."""

logger = logging.getLogger(__name__)


class FileState(NamedTuple):
    """Identifies the state of a file; all 0 if there is no file."""

    changed_s: float = 0.0
    """The time of the last change of content or permissions, in seconds since 1970."""
    size: int = 0
    inode: int = 0


def digest_key(key: str) -> bytes:
    """Return the digest by which a key is stored, so that nothing keeps the key itself."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


class KeyFile:
    """A file of API keys, one per line: ``KEY [user|metrics|admin]``, by default ``user``; # begins a comment line.

    Looking up a key reloads a changed file, with at most one check per `LOOK_S` seconds. If the file cannot be read,
    or others can write it, it logs that and the keys stay as they were; if the file has no key in it, no key is valid.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            UsageError: if it cannot be read, other users can read or write it, it has no key in it, or an invalid line.
        """
        self.path = path
        self._looked = time.monotonic()
        self._seen = self._read = _stamp(path)
        self._roles = parse_keys(_read(path), str(path))
        check_rights(path)
        if (fault := find_readers(path)) is not None:
            raise fault
        if not self._roles:
            raise UsageError(f"there is no API key in {path}", "write one key per line")

    def __str__(self) -> str:
        """Return the number of keys of each role, as text."""
        given = list(self._roles.values())
        return ", ".join(f"{given.count(role)} {role}" for role in ROLES)

    def find_role(self, digest: bytes) -> Role | None:
        """Return the role of a key, or None if there is no such key."""
        if (now := time.monotonic()) - self._looked >= LOOK_S:
            self._looked = now
            self._look()
        return self._roles.get(digest)

    def _look(self) -> None:
        stamp, before = _stamp(self.path), self._seen
        self._seen = stamp
        if stamp == self._read or (stamp != before and time.time() - stamp.changed_s < SETTLE_S):
            return
        self._read = stamp
        try:
            roles = parse_keys(_read(self.path), str(self.path))
            check_rights(self.path)
        except UsageError as error:
            logger.warning("API keys stay as they were: %s; %s", error.message, error.hint)
            return
        self._roles = roles
        logger.info("API keys read again: %s", self)
        if (fault := find_readers(self.path)) is not None:  # to keep a key that was taken out would be worse
            logger.warning("%s; %s", fault.message, fault.hint)


class ApiKeys:
    """All keys of a server. Without any, every client may do everything."""

    def __init__(self, keys: Mapping[str, Role] | None = None, file: KeyFile | None = None) -> None:
        """Accept ``keys``, and those of ``file``."""
        self._roles = {digest_key(key): role for key, role in (keys or {}).items()}
        self._file = file

    @property
    def file(self) -> Path | None:
        """The file of keys, or None."""
        return self._file.path if self._file else None

    @property
    def are_needed(self) -> bool:
        """Whether clients need a key."""
        return bool(self._roles) or self._file is not None

    def find_role(self, key: str) -> Role | None:
        """Return the role of a key; None if the key is unknown.

        It looks up digests: the time that takes depends on a hash of the given key and reveals nothing of others.
        """
        if not self.are_needed:
            return "admin"
        return self.find_digest_role(digest_key(key)) if key else None

    def find_digest_role(self, digest: bytes) -> Role | None:
        """Return the role of a key by what `digest_key` returns; None if the key is unknown."""
        return self._roles.get(digest) or (self._file.find_role(digest) if self._file else None)


def parse_keys(text: str, place: str) -> dict[bytes, Role]:
    """Return the roles of keys, by digest.

    Raises:
        UsageError: if a line is not a key that an HTTP header can carry, with or without a role; it names the line.
    """
    found: dict[bytes, Role] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            digest, role = _parse_line(line, f"line {number} of {place}")
            if found.setdefault(digest, role) != role:
                raise UsageError(f"line {number} of {place} gives a key another role", "give each key one line")
    return found


def _parse_line(line: str, place: str) -> tuple[bytes, Role]:
    """Return a key's digest and role; errors do not quote the key."""
    key, *rest = line.split()
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"{place} cannot be sent in an HTTP header", "use letters, digits and punctuation of ASCII")
    if not rest:
        return digest_key(key), "user"
    for role in ROLES:
        if rest == [role]:
            return digest_key(key), role
    raise UsageError(f"{place} is not a key with a role", f"write KEY, or KEY and one of {', '.join(ROLES)}")


def check_rights(path: Path) -> None:
    """Check the write permissions of a file of keys, if it exists.

    Raises:
        UsageError: if users can who are neither root nor the user of this process: they could add their own.
    """
    with suppress(FileNotFoundError):
        found = path.stat()
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in {os.getuid(), 0}:
            raise UsageError(f"other users can write the API keys in {path}", f"chmod 600 {path}, as its owner")


def find_readers(path: Path) -> UsageError | None:
    """Return an error if other users can read a file of keys; the owner of files mounted by root decides."""
    with suppress(FileNotFoundError):
        found = path.stat()
        is_ours = found.st_uid == os.getuid()
        if is_ours and found.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            hint = f"chmod 600 {path}, or mount it with mode 0400; replace the keys if others may have read them"
            return UsageError(f"other users can read the API keys in {path}", hint)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the API keys cannot be read: {error}"
        raise UsageError(message, "give --api-key-file a text file with one key per line") from error


def _stamp(path: Path) -> FileState:
    try:
        found = path.stat()
    except OSError:
        return FileState()
    return FileState(found.st_ctime, found.st_size, found.st_ino)
