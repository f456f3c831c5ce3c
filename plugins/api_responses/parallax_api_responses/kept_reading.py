"""Limits the stored responses in transit, so that clients that do not read cannot fill the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from parallax_api_responses.writer import find_code
from parallax_core.api import ParallaxError
from parallax_core.api.bodies import to_json
from parallax_core.api.dialect import Overloaded, UnreadOutput, write_named


class KeptReading:
    """A kept response being sent to a client: one piece is in memory, and counts as unread until the next.

    It is an `UnreadStream`. The readings of one client have the share of one stream, together.
    """

    def __init__(self, backlog: UnreadOutput, held: Counter[bytes], owner: bytes) -> None:
        """Count in ``backlog``, and in ``held``, the bytes of each client, those of ``owner``."""
        self._backlog = backlog
        self._held = held
        self._owner = owner
        self._excess = ""
        self.unread = 0

    def cut(self, reason: str) -> None:
        """End it with its next piece."""
        self._excess = reason

    def hold(self, num_bytes: int) -> None:
        """Count a piece that is about to be sent, and no longer the one before it.

        Raises:
            Overloaded: if there is no room for it.
        """
        self.close()
        if self._excess or not self._backlog.has_room(num_bytes, self._held[self._owner]):
            message = "too much of kept responses waits to be read by you or by others"
            raise Overloaded(message, "read fewer of them at a time, or try again later")
        self._held[self._owner] += num_bytes
        self._backlog.add(self, num_bytes)

    def close(self) -> None:
        """Count nothing any more. Idempotent."""
        self._held[self._owner] -= self.unread
        if not self._held[self._owner]:
            del self._held[self._owner]
        self._backlog.take(self, self.unread)

    async def read(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream of events; an error ends it with an event that says why."""
        try:
            async for piece in pieces:
                self.hold(len(piece))
                yield piece
        except ParallaxError as error:
            event = {"type": "error", "code": find_code(error), "message": str(error.message), "param": None}
            yield write_named("error", to_json(event))
