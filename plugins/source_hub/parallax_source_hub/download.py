"""Downloads byte ranges of files over connections that may break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from parallax_core.api import ParallaxError
from parallax_core.api.source import ByteRange, ByteRanges
from parallax_source_hub.partial_file import PartialFile, RemoteFile

AGAIN = "run the command again: it continues where it stopped"


class TransientError(ParallaxError):
    """A transfer failed in a way that a retry may fix, after at least ``after_s`` seconds."""

    def __init__(self, message: str, hint: str = "", after_s: float = 0) -> None:
        super().__init__(message, hint)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Incoming:
    """The bytes of a file that a server is sending."""

    start: int
    """The offset of the first byte; 0 if the server ignores ranges."""
    size: int | None
    """The size of the whole file, if the server states it."""
    chunks: Iterator[bytes]


Opener = Callable[[RemoteFile, int, int], AbstractContextManager[Incoming]]
"""Opens the bytes of a file from the first offset up to the second."""


@dataclass(frozen=True, slots=True)
class Download:
    """Fetches bytes of files, with retries."""

    open: Opener
    """Raises `TransientError` if a retry may help, otherwise another `ParallaxError`."""
    pauses_s: Sequence[float]
    """Seconds to wait before each retry; the number of retries without a byte of progress before giving up."""

    def fill(self, file: PartialFile, wanted: ByteRanges, report: Callable[[int], None]) -> None:
        """Fetch the wanted bytes that are missing.

        Received bytes are kept even if the transfer fails. ``report`` is called with the number of wanted bytes that
        are present; an exception from it ends the transfer.

        Raises:
            ParallaxError: if the file cannot be fetched, or its size differs from the listed one.
            OSError: if it cannot be written.
        """
        failures = 0
        report(wanted.total - _count(file.find_missing(wanted)))
        while missing := file.find_missing(wanted):
            try:
                self._receive(file, missing, lambda left: report(wanted.total - left))
            except TransientError as error:
                failures = 0 if _count(file.find_missing(wanted)) < _count(missing) else failures
                if failures == len(self.pauses_s):
                    raise
                time.sleep(max(self.pauses_s[failures], error.after_s))
                failures += 1

    def _receive(self, file: PartialFile, missing: Sequence[ByteRange], tell_left: Callable[[int], None]) -> None:
        """Fetch the first missing range, or all of them if the server ignores ranges."""
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
        fault = f"{file.name} has {incoming.size} bytes on the server, but is listed with {file.size}"
    elif incoming.start not in {0, start}:
        fault = f"the server sends {file.name} from byte {incoming.start} on instead of byte {start}"
    if fault:
        raise ParallaxError(fault, "run the command again; if it recurs, the copy on the server is damaged")


def _count(ranges: Sequence[ByteRange]) -> int:
    return sum(stop - start for start, stop in ranges)
