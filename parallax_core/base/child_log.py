"""Copies standard error of a worker and its children, each line with the worker's name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Self

CHUNK_BYTES = 65536
"""The most bytes that are read at once; a longer line is cut."""
LAST_S = 0.5
"""Seconds to wait for the rest of the log of a process that has ended."""


class ChildLog:
    """A pipe that becomes the standard error of a process. Use it as a context manager around the start.

    An engine, and what it imports, writes much that no logger has seen, so that only the pipe knows whose line it is.
    """

    def __init__(self, name: str) -> None:
        """Put ``name`` before each line that does not begin with it already."""
        self._prefix = f"[{name}] ".encode()
        self._rest = b""
        self._reader, self.writer = os.pipe()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to copy; ``writer`` is the end for the new process."""
        reader = asyncio.StreamReader(limit=2 * CHUNK_BYTES)
        loop, source = asyncio.get_running_loop(), os.fdopen(self._reader, "rb", 0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        self._task = loop.create_task(self._copy(reader, transport))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close this process's copy of the writing end, so that the pipe ends with the new process."""
        os.close(self.writer)

    async def close(self) -> None:
        """Copy what is left of a process that has ended, and stop; a child process that lives on is not waited for."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, transport: asyncio.BaseTransport) -> None:
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                write_lines(self._take_lines(chunk))
            if self._rest:
                write_lines([self._mark(self._rest)])
        finally:
            transport.close()

    def _take_lines(self, chunk: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        yield from map(self._mark, lines)
        if len(self._rest) > CHUNK_BYTES:
            yield self._mark(self._rest)
            self._rest = b""

    def _mark(self, line: bytes) -> bytes:
        last = line.rstrip(b"\r").rpartition(b"\r")[2]  # of a progress bar, its last state
        return last if last.startswith(self._prefix) or not last.strip() else self._prefix + last


def write_lines(lines: Iterator[bytes] | list[bytes]) -> None:
    """Write lines to standard error, as far as that is possible."""
    text = b"".join(line + b"\n" for line in lines)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or not there
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
