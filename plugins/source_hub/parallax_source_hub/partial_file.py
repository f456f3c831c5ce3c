"""Writes files fetched in any order and several attempts; see `parallax_core.checkpoint.partial`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from parallax_core.api import ParallaxError
from parallax_core.api.source import ByteRange, ByteRanges, FetchedRange, name_journal, read_journal

RANGE_BYTES = 2**24
"""The number of bytes per line of the journal: the most that a killed process loses."""
READ_BYTES = 2**22
"""The number of bytes read at a time while a file is checked."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at one commit, as the hub lists it."""

    name: str
    size: int
    """The size in bytes."""
    blob: str
    """The git blob id of the file: SHA-1 of ``blob SIZE\\0`` and the content, in hexadecimal."""
    sha256: str = ""
    """The SHA-256 of the content in hexadecimal, for files in Git LFS: their blob id is the pointer's."""


class PartialFile:
    """A partially fetched file. Only one process may write to it at a time.

    Until readers can use it, it is called ``NAME.part``; then it gets its own name, and its journal lists the present
    ranges. A file without a journal is complete and checked.
    """

    def __init__(self, folder: Path, remote: RemoteFile) -> None:
        """Continue earlier attempts in ``folder``; files that do not match ``remote`` are deleted."""
        self.remote = remote
        self._named = folder / remote.name
        self._nameless = folder / f"{remote.name}.part"
        self._journal = name_journal(self._named)
        journal = read_journal(self._named)
        self.is_whole = journal is None and _has_size(self._named, remote.size)
        if not self.is_whole and not (journal is not None and _has_size(self.path, remote.size)):
            self._discard()
            journal = []
        self.present = ByteRanges((line.start, line.stop) for line in journal or ())
        self._out: BinaryIO | None = None
        self._pending = (0, 0)
        """The range that is written but not yet listed in the journal."""
        self._digest = hashlib.sha256()

    @property
    def path(self) -> Path:
        """The current path of the file."""
        return self._named if self._named.exists() else self._nameless

    @property
    def is_named(self) -> bool:
        """Whether the file has its own name, under which readers find it."""
        return self._named.exists()

    def find_missing(self, wanted: ByteRanges) -> list[ByteRange]:
        """Return the wanted ranges that are missing, in order."""
        return [] if self.is_whole else [gap for each in wanted for gap in self.present.find_missing(*each)]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file for `write`; at the end, even after an error, list the written ranges in the journal."""
        if not self._journal.exists():
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            self._journal.touch()
            with self._nameless.open("wb") as out:
                out.truncate(self.remote.size)
        if not (self._journal.read_bytes() or b"\n").endswith(b"\n"):  # an incomplete last line
            self._rewrite(read_journal(self._named) or [])
        with self.path.open("r+b") as self._out:
            try:
                yield
            finally:
                self._record()

    def write(self, start: int, chunk: bytes | memoryview) -> int:
        """Write the new bytes of a chunk that begins at byte ``start``, and return their number."""
        missing = self.present.find_missing(start, start + len(chunk))
        for first, last in missing:
            self._append(first, chunk[first - start : last - start])
        return sum(last - first for first, last in missing)

    def name(self) -> None:
        """Give the file its own name, once its header is present, so that readers find it."""
        if not self.is_named:
            self._nameless.rename(self._named)

    def finish(self, report: Callable[[int], None]) -> None:
        """Check a file whose bytes are all present, and mark it as complete.

        Args:
            report: receives the number of checked bytes.

        Raises:
            ParallaxError: if its content does not match its digest; damaged ranges are dropped, to be fetched again.
        """
        if self.is_whole:
            return
        if not self.path.exists():  # the file is empty
            with self.writing():
                pass
        if _hash_content(self.path, self.remote, report) != (self.remote.sha256 or self.remote.blob):
            raise self._drop_damage()
        self.accept()

    def accept(self) -> None:
        """Mark a file whose bytes are all present as complete, without a check."""
        self.name()
        self._journal.unlink()
        self.is_whole = True

    def drop(self, spent: ByteRanges) -> None:
        """Give the room of ranges back to the disk, by copying the others; a complete file stays as it is."""
        if self.is_whole or not self._journal.exists():
            return
        draft, lines = self.path.with_name(f"{self.path.name}.new"), []
        with self.path.open("rb") as old, draft.open("wb") as new:
            new.truncate(self.remote.size)
            for start, stop in [kept for each in self.present for kept in spent.find_missing(*each)]:
                lines.append(_copy_range(old, new, start, stop))
        self._rewrite(lines)
        draft.replace(self.path)
        self.present = ByteRanges((line.start, line.stop) for line in lines)

    def _append(self, start: int, data: bytes | memoryview) -> None:
        assert self._out is not None, "the file is open for writing"
        if start != self._pending[1]:
            self._record()
            self._pending = start, start
        self._out.seek(start)
        self._out.write(data)
        self._digest.update(data)
        self._pending = self._pending[0], start + len(data)
        self.present.add(start, start + len(data))
        if self._pending[1] - self._pending[0] >= RANGE_BYTES:
            self._record()

    def _record(self) -> None:
        """List the written range in the journal, after flushing it to disk."""
        assert self._out is not None, "the file is open for writing"
        start, stop = self._pending
        if start < stop:
            self._out.flush()
            os.fsync(self._out.fileno())
            with self._journal.open("a", encoding="ascii") as journal:
                journal.write(f"{FetchedRange(start, stop, self._digest.hexdigest())}\n")
        self._pending, self._digest = (stop, stop), hashlib.sha256()

    def _drop_damage(self) -> ParallaxError:
        """Drop the ranges that have changed since they arrived, or all ranges if none has; return the error."""
        lines = read_journal(self._named) or []
        sound = [line for line in lines if line.stop <= self.remote.size and _is_sound(self.path, line)]
        if len(sound) == len(lines):
            self._discard()
            message = f"{self.remote.name} arrived damaged: its checksum differs"
            return ParallaxError(message, "run the command again; if it recurs, the copy on the server is damaged")
        self._rewrite(sound)
        message = f"{len(lines) - len(sound)} of {len(lines)} parts of {self.path} have changed since they were fetched"
        return ParallaxError(message, "run the command again, which fetches them again; if it recurs, check the disk")

    def _rewrite(self, lines: list[FetchedRange]) -> None:
        draft = self._journal.with_name(f"{self._journal.name}.new")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        draft.replace(self._journal)

    def _discard(self) -> None:
        for path in (self._named, self._nameless, self._journal):
            path.unlink(missing_ok=True)


def _copy_range(old: BinaryIO, new: BinaryIO, start: int, stop: int) -> FetchedRange:
    digest, position = hashlib.sha256(), start
    old.seek(start)
    new.seek(start)
    while chunk := old.read(min(READ_BYTES, stop - position)):
        new.write(chunk)
        digest.update(chunk)
        position += len(chunk)
    return FetchedRange(start, stop, digest.hexdigest())


def _has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def _hash_content(path: Path, remote: RemoteFile, report: Callable[[int], None]) -> str:
    # The git blob id detects damage; TLS provides the security.
    digest = hashlib.sha256() if remote.sha256 else hashlib.sha1(b"blob %d\0" % remote.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(READ_BYTES):
            digest.update(chunk)
            report(content.tell())
    return digest.hexdigest()


def _is_sound(path: Path, line: FetchedRange) -> bool:
    with path.open("rb") as content:
        content.seek(line.start)
        return hashlib.sha256(content.read(line.stop - line.start)).hexdigest() == line.sha256
