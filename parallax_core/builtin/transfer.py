"""Bring one file here over a connection that may break, and know that it is the right one."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from parallax_core.base.errors import ParallaxError


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at one commit, as the hub lists it."""

    name: str
    size: int
    """In bytes."""
    blob: str
    """Git's id of the file: SHA-1 over ``blob SIZE\\0`` and the content, in hex."""
    sha256: str = ""
    """SHA-256 of the content in hex, for files in large-file storage; git's id is that of a pointer then."""


class Hiccup(ParallaxError):
    """A transfer broke in a way that trying again may mend, not before ``after_s`` seconds have passed."""

    def __init__(self, message: str, hint: str = "", after_s: float = 0) -> None:
        super().__init__(message, hint)
        self.after_s = after_s


Opener = Callable[[RemoteFile, int], AbstractContextManager[tuple[int, Iterator[bytes]]]]
"""Opens a file from a byte on; gives the byte the content really begins with (0 where ranges are ignored), and it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How files get here."""

    open: Opener
    """Raises `Hiccup` for what may pass, any other `ParallaxError` for what will not."""
    pauses_s: Sequence[float]
    """How long to wait before each new try; as many tries without a byte of progress are made, and then no more."""

    def save(self, file: RemoteFile, folder: Path, report: Callable[[int], None]) -> None:
        """Make ``folder/file.name`` exist with the listed content, going on where an earlier attempt ended.

        A file has its own name only once it is verified; until then it is ``NAME.part``. ``report`` is called
        with the bytes that are here, and an exception it raises ends the transfer.

        Raises:
            ParallaxError: if the file cannot be had, or what arrived is not what was listed.
            OSError: if it cannot be written.
        """
        target = folder / file.name
        if not target.exists():
            part = target.with_name(f"{file.name}.part")
            part.touch()
            self._fill(file, part, report)
            _verify(file, part)
            part.replace(target)
        report(file.size)

    def _fill(self, file: RemoteFile, part: Path, report: Callable[[int], None]) -> None:
        failures = 0
        while (before := part.stat().st_size) < file.size:
            try:
                self._append(file, part, report)
            except Hiccup as hiccup:
                failures = 0 if part.stat().st_size > before else failures
                if failures == len(self.pauses_s):
                    raise
                time.sleep(max(self.pauses_s[failures], hiccup.after_s))
                failures += 1

    def _append(self, file: RemoteFile, part: Path, report: Callable[[int], None]) -> None:
        with self.open(file, part.stat().st_size) as (begin, chunks), part.open("r+b") as out:
            out.seek(begin)
            for chunk in chunks:
                out.write(chunk)
                if out.tell() > file.size:
                    return
                report(out.tell())
            if out.tell() < file.size:
                message = f"{file.name} ended after {out.tell()} of {file.size} bytes"
                raise Hiccup(message, "run the command again: it goes on where it stopped")
            out.flush()
            # A power cut must not leave a verified name with unwritten content.
            os.fsync(out.fileno())


def _verify(file: RemoteFile, part: Path) -> None:
    size = part.stat().st_size
    if size == file.size and _digest(file, part) == (file.sha256 or file.blob):
        return
    part.unlink()
    what = "its checksum differs" if size == file.size else f"it has more than the {file.size} bytes announced"
    message = f"{file.name} arrived damaged: {what}"
    raise ParallaxError(message, "run the command again; if it recurs, the copy on the server is damaged")


def _digest(file: RemoteFile, part: Path) -> str:
    with part.open("rb") as content:
        if file.sha256:
            return hashlib.file_digest(content, "sha256").hexdigest()
        # Git's name for a blob, which is no security here: TLS is.
        return hashlib.sha1(b"blob %d\0" % file.size + content.read(), usedforsecurity=False).hexdigest()
