"""A pseudo-terminal that keeps what is written to it."""

from __future__ import annotations

import os
import pty
import termios
import threading
from types import TracebackType
from typing import Self, TextIO


class Terminal:
    """A terminal of 30 lines of 120 characters. Use it as a context manager; ``text`` is whole after that."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        """The end for programs."""
        termios.tcsetwinsize(self.theirs, (30, 120))
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)

    @property
    def text(self) -> str:
        """What was written so far, with control sequences."""
        return b"".join(self._parts).decode(errors="replace")

    @property
    def path(self) -> str:
        """The path by which programs open it."""
        return os.ttyname(self.theirs)

    def type(self, text: str) -> None:
        """Write what a user types."""
        os.write(self._ours, text.encode())

    def open(self) -> TextIO:
        """Return a stream to it, which is to be closed before the context ends."""
        return os.fdopen(os.dup(self.theirs), "w", encoding="utf-8")

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # nobody has the other end any more
                return
            if not part:  # the same, on macOS
                return
            self._parts.append(part)
