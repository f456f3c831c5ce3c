"""Limits the messages of each kind on a link."""

from __future__ import annotations

from parallax_core.contracts.service_message import ServiceMessage

TELL_S = 1.0
"""Seconds for which a peer is not told again of dropped messages of a kind."""
MOST_TOLD = 64
"""The most kinds of which a peer is told in that time."""


class MessageLimits:
    """The limits of one link: of each kind, as many messages at once as it takes in a second on average."""

    def __init__(self) -> None:
        self._room: dict[type[ServiceMessage], tuple[float, float]] = {}
        """By kind: how many messages more may come at once, and when that was so, in seconds."""
        self._told: dict[int, float] = {}
        """By tag: when the peer was told, in seconds."""

    def take(self, kind: type[ServiceMessage], now: float) -> bool:
        """Return whether a message of a kind may be taken at ``now``, in seconds, and count it if so."""
        most = max(kind.most_per_s, 1.0)
        room, before = self._room.get(kind, (most, now))
        room = min(most, room + (now - before) * kind.most_per_s)
        self._room[kind] = (room - 1 if room >= 1 else room, now)
        return room >= 1

    def may_tell(self, tag: int, now: float) -> bool:
        """Return whether to tell the peer at ``now`` that a message with a tag was dropped, and note that if so."""
        self._told = {each: at for each, at in self._told.items() if now - at < TELL_S}
        if tag in self._told or len(self._told) >= MOST_TOLD:
            return False
        self._told[tag] = now
        return True
