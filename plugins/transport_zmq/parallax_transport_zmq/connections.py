"""The connections made to a socket by others: those that are links, and those to end.

ZeroMQ itself ends none whose key it accepted, and hangs up on no peer by request. It gathers all parts of a message,
whose number it does not limit, before it passes on the first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from parallax_transport_zmq.arrivals import count_arrived, find_inode, hang_up

MOST_UNLINKED = 256
"""The most connections without a link; of more, those that have been so for longest are ended."""
UNLINKED_S = 5.0
"""Seconds in which a connection has to become a link, or to ask for admission."""
FAREWELL_S = 1.0
"""Seconds for which the last messages to a peer are sent before its connection is ended."""
LINKS_S = 2.0
"""Seconds between two looks at what links have sent."""
MOST_UNLINKED_BYTES = 2**16
"""Bytes that a connection without a link may send: a handshake, and a greeting."""
MOST_UNSEEN_BYTES = 320 * 2**20
"""Bytes that a link may send ahead of what is heard of it: ZeroMQ holds 64 messages of at most 4 MiB."""
WRAP_BYTES = 128
"""The most bytes that encryption and headers add to a message."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection that another node has made."""

    file: int
    """Its file descriptor."""
    inode: int | None
    """Of its socket: another connection may have the descriptor by now."""
    until: float
    """When it is ended, by the monotonic clock; infinite: it is a link, which ends by itself."""
    most_unseen: int = MOST_UNLINKED_BYTES
    """The most bytes that it may send and that are not part of a whole message."""
    heard: int = 0
    """Bytes of the messages that were passed on, with `WRAP_BYTES` for each."""

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self.inode is None or find_inode(self.file) != self.inode

    @property
    def is_hoarding(self) -> bool:
        """Whether it has sent more than it may that belongs to no whole message, where the system tells that."""
        return count_arrived(self.file) - self.heard > self.most_unseen

    def hang_up(self) -> None:
        """End it."""
        if not self.is_gone:
            hang_up(self.file)


class Connections:
    """The connections to a socket. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep time by ``clock``, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._unlinked: dict[int, Connection] = {}
        """By file descriptor."""
        self._links: dict[int, Connection] = {}
        self._look_at = 0.0
        """When to look at links again."""

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._unlinked) + len(self._links)

    def note_begin(self, file: int) -> None:
        """Note that a connection was accepted, unless it is known already."""
        with self._lock:
            self._find(file)

    def note_end(self, file: int) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            for known in (self._unlinked, self._links):
                if (found := known.get(file)) is not None and found.is_gone:  # else it is another, which came since
                    del known[file]

    def keep(self, file: int) -> Connection:
        """Return a connection, which is a link from now on."""
        with self._lock:
            found = self._find(file)
            found.until, found.most_unseen = math.inf, MOST_UNSEEN_BYTES
            self._unlinked.pop(file, None)
            self._links[file] = found
            return found

    def end_stranger(self, file: int) -> None:
        """End a connection once the last messages to it are sent, unless the descriptor is that of a link."""
        with self._lock:
            found = self._find(file)
            found.until = min(found.until, self._clock() + FAREWELL_S) if file in self._unlinked else found.until

    def end_link(self, link: Connection) -> None:
        """End a link once the last messages to it are sent."""
        with self._lock:
            link.until = self._clock() + FAREWELL_S
            if self._links.get(link.file) is link:
                self._unlinked[link.file] = self._links.pop(link.file)

    def end_surplus(self) -> int:
        """End connections whose time is over, that are too many, or that send too much; return their number."""
        now = self._clock()
        with self._lock:
            looked = [self._unlinked]
            if now >= self._look_at:
                self._look_at = now + LINKS_S
                looked.append(self._links)
            for known in looked:
                for gone in [each for each in known.values() if each.is_gone]:
                    del known[gone.file]
            unlinked = sorted(self._unlinked.values(), key=lambda each: each.until)
            seen = [each for known in looked for each in known.values()]
        many = set(unlinked[: max(0, len(unlinked) - MOST_UNLINKED)])
        ended = [each for each in seen if each in many or each.until <= now or each.is_hoarding]
        for each in ended:
            each.hang_up()
        return len(ended)

    def _find(self, file: int) -> Connection:
        """Return the connection that has a descriptor now."""
        found = self._links.get(file) or self._unlinked.get(file)
        if found is None or found.is_gone:
            self._links.pop(file, None)
            found = self._unlinked[file] = Connection(file, find_inode(file), self._clock() + UNLINKED_S)
        return found
