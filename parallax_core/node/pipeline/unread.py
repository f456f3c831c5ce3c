"""Bounds the memory of output that was computed and that clients have not read yet."""

from __future__ import annotations

from typing import Protocol

from parallax_core.contracts.engine import Delta

MOST_BYTES = 2**30
"""The default limit of unread bytes, for all streams together."""
SHARE = 4
"""One stream may hold a limit's ``1 / SHARE``, so that one client that does not read leaves room for the others."""

DELTA_BYTES, ENTRY_BYTES, TOP_BYTES = 240, 160, 122
"""Measured bytes of a delta, of each log-probability entry in it, and of each alternative in an entry."""


class UnreadStream(Protocol):
    """A stream that holds unread deltas."""

    unread: int
    """The bytes of the unread deltas."""

    def cut(self, reason: str) -> None:
        """Drop the unread deltas, and end with an error that gives the reason."""


class UnreadOutput:
    """Counts the unread bytes of a server's streams, approximately. Belongs to one event loop.

    It cuts a stream that holds too much, so that a client that reads slowly or not at all cannot fill the server's
    memory. When all streams together hold too much, it cuts the largest.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Allow ``most_bytes`` for all streams together, and ``most_bytes / SHARE`` for each."""
        self._most = most_bytes
        self._most_of_one = most_bytes // SHARE
        self._holders: set[UnreadStream] = set()
        self.num_bytes = 0

    def add(self, holder: UnreadStream, num_bytes: int) -> None:
        """Count more unread bytes of a stream; this may cut it or another one."""
        self.num_bytes += num_bytes
        holder.unread += num_bytes
        self._holders.add(holder)
        if holder.unread > self._most_of_one:
            holder.cut(f"its client has left {_show(self._most_of_one)} of it unread")
        elif self.num_bytes > self._most:
            largest = max(self._holders, key=lambda each: each.unread)
            largest.cut(f"clients have left {_show(self._most)} of answers unread, and this is the largest of them")

    def has_room(self, num_bytes: int, held: int) -> bool:
        """Return whether a client that has left ``held`` bytes unread may have more, without a stream being cut."""
        return held + num_bytes <= self._most_of_one and self.num_bytes + num_bytes <= self._most

    def take(self, holder: UnreadStream, num_bytes: int) -> None:
        """Count bytes of a stream that were read or dropped."""
        self.num_bytes -= num_bytes
        holder.unread -= num_bytes
        if not holder.unread:
            self._holders.discard(holder)


def weigh(delta: Delta) -> int:
    """Return the approximate bytes a delta takes in memory."""
    entries = delta.logprobs + delta.prompt_logprobs if delta.prompt_logprobs else delta.logprobs
    total = DELTA_BYTES + 2 * len(delta.text)
    if delta.embedding is not None:
        total += memoryview(delta.embedding.data).nbytes
    for entry in entries:
        total += ENTRY_BYTES + TOP_BYTES * len(entry.top)
    return total


def _show(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
