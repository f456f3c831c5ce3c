"""Which bytes of a file are on this machine, where a source has fetched only a part of it.

Such a file, ``NAME``, has its full length from the start, so that every tensor lies where its header says; what was not
fetched is a hole, which reads as zeros and takes no space. Beside it stands its journal, ``NAME.partial``: a line of
text for each range of bytes that was fetched, with the range's first byte, the byte after its last, and the SHA-256 of
its content. Lines are only ever appended, once their bytes are safely on disk. A file without a journal is whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from parallax_core.base.byteranges import ByteRanges

SUFFIX = ".partial"
"""What the journal of a file adds to its name."""
_LINE = re.compile(r"(\d{1,18}) (\d{1,18}) ([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """A range of bytes that was fetched: a line of a journal."""

    start: int
    stop: int
    sha256: str
    """Of its content as it arrived, in hex."""

    def __str__(self) -> str:
        return f"{self.start} {self.stop} {self.sha256}"


def name_journal(path: Path) -> Path:
    """Return where the journal of a file is, if it has one."""
    return path.with_name(path.name + SUFFIX)


def read_journal(path: Path) -> list[FetchedRange] | None:
    """Return the ranges that the journal of the file at ``path`` lists; None if it has no journal, being whole.

    Lines that are damaged are left out, and so is the last one while it is being written: their bytes count as missing.
    """
    try:
        text = name_journal(path).read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    lines = map(_LINE.fullmatch, text.split("\n")[:-1])
    return [FetchedRange(int(line[1]), int(line[2]), line[3]) for line in lines if line]


def read_present(path: Path) -> ByteRanges | None:
    """Return which bytes of the file at ``path`` are on this machine; None if it is whole."""
    journal = read_journal(path)
    return None if journal is None else ByteRanges((line.start, line.stop) for line in journal)
