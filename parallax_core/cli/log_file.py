"""Keeps in a file what this process writes to standard error, while its terminal shows something else."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

MOST_BYTES = 8 * 2**20
"""The size from which on a file makes way for a new one; one old file is kept."""
STDERR = 2


class LogFile:
    """Diverts standard error to a file: that of Python, of C libraries, and of programs that are started meanwhile."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        """Append to ``path``."""
        self.path = path
        self._most_bytes = most_bytes
        self._saved = -1

    def __enter__(self) -> Self:
        """Divert it.

        Raises:
            OSError: if the file cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _flush()
        saved = os.dup(STDERR)
        try:
            self._begin()
        except OSError:
            os.close(saved)
            raise
        self._saved = saved
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore standard error."""
        _flush()
        os.dup2(self._saved, STDERR)
        os.close(self._saved)

    def open_terminal(self) -> TextIO:
        """Return a stream to what standard error was before."""
        return os.fdopen(os.dup(self._saved), "w", encoding="utf-8", errors="replace")

    def limit(self) -> None:
        """Begin a new file if this one is large; if that fails, the old one goes on."""
        with contextlib.suppress(OSError):
            if os.fstat(STDERR).st_size >= self._most_bytes:
                self.path.replace(self.path.with_suffix(".old"))
                self._begin()

    def _begin(self) -> None:
        sink = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(sink, STDERR)
        os.close(sink)


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is full or closed
        sys.stderr.flush()
