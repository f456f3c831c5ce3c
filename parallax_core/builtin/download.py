"""Bring bytes of a file here over a connection that may break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from parallax_core.base.byteranges import ByteRange, ByteRanges
from parallax_core.base.errors import ParallaxError
from parallax_core.builtin.partial_file import PartialFile, RemoteFile

AGAIN = "run the command again: it goes on where it stopped"


class TransientError(ParallaxError):
    """A transfer broke in a way that trying again may mend, not before ``after_s`` seconds have passed."""

    def __init__(self, message: str, hint: str = "", after_s: float = 0) -> None:
        super().__init__(message, hint)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Incoming:
    """Bytes of a file that a server sends."""

    start: int
    """The first of them: 0 where the server ignores ranges."""
    size: int | None
    """Of the whole file, as far as the server says."""
    chunks: Iterator[bytes]


Opener = Callable[[RemoteFile, int, int], AbstractContextManager[Incoming]]
"""Opens a range of bytes of a file: from the first number up to the second."""


@dataclass(frozen=True, slots=True)
class Download:
    """How files get here."""

    open: Opener
    """Raises `TransientError` for what may pass, any other `ParallaxError` for what will not."""
    pauses_s: Sequence[float]
    """How long to wait before each new try; as many tries without a byte of progress are made, and then no more."""

    def fill(self, file: PartialFile, wanted: ByteRanges, report: Callable[[int], None]) -> None:
        """Fetch what is missing of the bytes that are wanted.

        Whatever ends it, bytes that came are kept. ``report`` is called with the number of wanted bytes that are here,
        and an exception it raises ends the transfer.

        Raises:
            ParallaxError: if the file cannot be had, or has another size than was listed.
            OSError: if it cannot be written.
        """
        failures = 0
        report(wanted.total - _count(file.find_missing(wanted)))
        while missing := file.find_missing(wanted):
            try:
                self._receive(file, missing, lambda left: report(wanted.total - left))
            except TransientError as hiccup:
                failures = 0 if _count(file.find_missing(wanted)) < _count(missing) else failures
                if failures == len(self.pauses_s):
                    raise
                time.sleep(max(self.pauses_s[failures], hiccup.after_s))
                failures += 1

    def _receive(self, file: PartialFile, missing: Sequence[ByteRange], tell_left: Callable[[int], None]) -> None:
        """Fetch the first of the missing ranges; all of them, from a server that ignores ranges."""
        (start, stop), left = missing[0], _count(missing)
        with self.open(file.remote, start, stop) as incoming, file.writing():
            _check_answer(file.remote, start, incoming)
            has_ranges = incoming.start == start
            position, stop = incoming.start, stop if has_ranges else missing[-1][1]
            for chunk in incoming.chunks:
                num_new = file.write(position, chunk[: stop - position])
                position = min(position + len(chunk), stop)
                left = left - num_new if has_ranges else _count(file.find_missing(ByteRanges(missing)))
                tell_left(left)
                if position == stop:
                    return
            raise TransientError(f"{file.remote.name} ended after {position} of {file.remote.size} bytes", AGAIN)


def _check_answer(file: RemoteFile, start: int, incoming: Incoming) -> None:
    fault = ""
    if incoming.size is not None and incoming.size != file.size:
        fault = f"{file.name} has {incoming.size} bytes on the server, which lists it with {file.size}"
    elif incoming.start not in {0, start}:
        fault = f"the server sends {file.name} from byte {incoming.start} on, where byte {start} was asked for"
    if fault:
        raise ParallaxError(fault, "run the command again; if it recurs, the copy on the server is damaged")


def _count(ranges: Sequence[ByteRange]) -> int:
    return sum(stop - start for start, stop in ranges)
