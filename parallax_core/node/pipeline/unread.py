"""What waits to be read: answers that were computed, and that clients have not taken yet."""

from __future__ import annotations

from typing import Protocol

from parallax_core.contracts.engine import Delta

MOST_BYTES = 2**30
"""Of all answers together, unless told otherwise."""
SHARE = 4
"""One answer may be so much less: those of others go on while one client reads nothing."""

DELTA_BYTES, ENTRY_BYTES, TOP_BYTES = 240, 160, 122
"""What a delta takes in memory by itself, and for each log-probability in it; measured."""


class UnreadStream(Protocol):
    """A stream that holds deltas nobody has read."""

    unread: int
    """Their bytes."""

    def cut(self, reason: str) -> None:
        """Drop them, and end with an error that says why."""


class UnreadOutput:
    """How much the streams of a server hold, in bytes of memory, about. Belongs to one event loop.

    A stream that holds too much is cut: a client that reads slowly, or not at all, cannot have a server hold more and
    more for it. When all together hold too much, the one that holds most is cut.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Have streams hold at most ``most_bytes`` together, and each of them a quarter of that."""
        self._most = most_bytes
        self._most_of_one = most_bytes // SHARE
        self._holders: set[UnreadStream] = set()
        self.num_bytes = 0

    def add(self, holder: UnreadStream, num_bytes: int) -> None:
        """Count what a stream holds more, which may be the end of it or of another."""
        self.num_bytes += num_bytes
        holder.unread += num_bytes
        self._holders.add(holder)
        if holder.unread > self._most_of_one:
            holder.cut(f"its client has left {_show(self._most_of_one)} of it unread")
        elif self.num_bytes > self._most:
            largest = max(self._holders, key=lambda each: each.unread)
            largest.cut(f"clients have left {_show(self._most)} of answers unread, and this is the largest of them")

    def take(self, holder: UnreadStream, num_bytes: int) -> None:
        """Count what was read, or dropped, of what a stream holds."""
        self.num_bytes -= num_bytes
        holder.unread -= num_bytes
        if not holder.unread:
            self._holders.discard(holder)


def weigh(delta: Delta) -> int:
    """Return how many bytes a delta takes in memory, about."""
    entries = delta.logprobs + delta.prompt_logprobs if delta.prompt_logprobs else delta.logprobs
    total = DELTA_BYTES + 2 * len(delta.text)
    for entry in entries:
        total += ENTRY_BYTES + TOP_BYTES * len(entry.top)
    return total


def _show(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
