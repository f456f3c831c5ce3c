"""Reads which bytes of a partially fetched file are on this machine.

Such a file, ``NAME``, has its full length from the start, so that every tensor is at the offset its header states;
missing bytes are a hole, which reads as zeros and takes no space. Its journal, ``NAME.partial`` in the same folder, has
a line of text for each fetched range of bytes: its first byte, the byte after its last, and the SHA-256 of its content.
Lines are only appended, after their bytes are safely on disk. A file without a journal is complete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from parallax_core.base.byteranges import ByteRanges

SUFFIX = ".partial"
"""The suffix of a journal's name."""
_LINE = re.compile(r"(\d{1,18}) (\d{1,18}) ([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """A fetched range of bytes: a line of a journal."""

    start: int
    stop: int
    sha256: str
    """The SHA-256 of its content as it arrived, in hexadecimal."""

    def __str__(self) -> str:
        return f"{self.start} {self.stop} {self.sha256}"


def name_journal(path: Path) -> Path:
    """Return the path of a file's journal, whether or not it exists."""
    return path.with_name(path.name + SUFFIX)


def read_journal(path: Path) -> list[FetchedRange] | None:
    """Return the ranges in the journal of the file at ``path``; None if it has no journal, so that it is complete.

    Damaged lines are skipped, and so is a last line that is still being written: their bytes count as missing.
    """
    try:
        text = name_journal(path).read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    lines = map(_LINE.fullmatch, text.split("\n")[:-1])
    return [FetchedRange(int(line[1]), int(line[2]), line[3]) for line in lines if line]


def read_present(path: Path) -> ByteRanges | None:
    """Return the bytes of the file at ``path`` that are on this machine; None if it is complete."""
    journal = read_journal(path)
    return None if journal is None else ByteRanges((line.start, line.stop) for line in journal)
