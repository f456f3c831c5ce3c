"""Orders the packets of a stream, drops duplicates, and refuses packets without room."""

from __future__ import annotations

from collections import deque

from parallax_transport_lattica.packet import MOST_CONTENT, Reply

WINDOW = 16
"""The most packets of a stream that a sender has in flight."""
MOST_BYTES = WINDOW * MOST_CONTENT
"""The most bytes that wait to be taken, and the most that wait for earlier packets."""


class Inbox:
    """The incoming half of a stream. Not safe for threads: `Tunnel` has a lock."""

    def __init__(self) -> None:
        self._next = 1
        self._ahead: dict[int, bytes] = {}
        self._ahead_bytes = 0
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._last: int | None = None
        """The number of the packet that ends the stream."""

    @property
    def is_ended(self) -> bool:
        """Whether all packets of the stream have arrived."""
        return self._last is not None and self._next > self._last

    def add(self, number: int, content: bytes, *, is_last: bool = False) -> Reply:
        """Add a packet of any number; the answer says whether the sender may forget it."""
        if number < 1 or (self._last is not None and number > self._last):
            return Reply.BAD
        if self._is_known(number):
            return Reply.TAKEN
        if not self._has_room(number, len(content)):
            return Reply.BUSY
        if is_last:
            if any(each > number for each in self._ahead):
                return Reply.BAD
            self._last = number
        self._ahead[number] = content
        self._ahead_bytes += len(content)
        self._order()
        return Reply.TAKEN

    def ask(self, number: int) -> Reply:
        """Return the answer to any packet of this number."""
        has_room = self._is_known(number) or self._has_room(number, MOST_CONTENT)
        return Reply.TAKEN if has_room else Reply.BUSY

    def take(self) -> bytes:
        """Return and forget all data that is in order, if any."""
        data = b"".join(self._ready)
        self._ready.clear()
        self._ready_bytes = 0
        return data

    def _is_known(self, number: int) -> bool:
        return number < self._next or number in self._ahead

    def _has_room(self, number: int, size: int) -> bool:
        if number >= self._next + 2 * WINDOW:
            return False
        # Packets that came early have room of their own, or they could keep out the one that all wait for.
        if number == self._next:
            return self._ready_bytes < MOST_BYTES
        return self._ahead_bytes + size <= MOST_BYTES

    def _order(self) -> None:
        while (content := self._ahead.pop(self._next, None)) is not None:
            self._next += 1
            self._ahead_bytes -= len(content)
            self._ready.append(content)
            self._ready_bytes += len(content)
