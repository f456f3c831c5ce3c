"""Decides when an end of a link sends heartbeats, and how often it wants the other end's."""

from __future__ import annotations

from parallax_core.api import TransportPlan
from parallax_transport_zmq.message import pack_beat, unpack_beat

BEAT_S = 0.1
"""Longest interval between two heartbeats in seconds, where an end monitors the link."""
IDLE_BEATS = 5
"""The heartbeats within the time after which a peer is lost, where neither end monitors the link."""


def find_interval(plan: TransportPlan) -> float:
    """Return the interval in seconds between two heartbeats, where an end monitors the link."""
    return min(BEAT_S, plan.timeout_s / 10)


class HeartbeatPace:
    """The intervals between the heartbeats of one end: short where an end monitors the link, and long otherwise."""

    def __init__(self, plan: TransportPlan) -> None:
        self._shortest_s = find_interval(plan)
        self._longest_s = max(self._shortest_s, plan.timeout_s / IDLE_BEATS)
        self._wanted_s = self._shortest_s
        """The interval that the peer wants; until it says so, the shortest."""
        self.is_monitored = False
        """Whether this end monitors the link."""
        self.posted = 0.0
        """When a message was last posted: any counts as a sign of life."""

    def is_over(self, since: float, now: float) -> bool:
        """Return whether about one interval has passed; whoever asks does so once in each of the shortest."""
        interval_s = self._shortest_s if self.is_monitored else min(self._wanted_s, self._longest_s)
        return now - since >= interval_s - self._shortest_s / 2

    def hear(self, message: bytes) -> None:
        """Note how often the peer wants heartbeats; one that does not say so gets them often.

        Raises:
            BadMessage: if the message is malformed.
        """
        self._wanted_s = unpack_beat(message) or self._shortest_s

    def pack(self) -> bytes:
        """Return a heartbeat, which says how often this end wants those of the peer."""
        return pack_beat(self._shortest_s if self.is_monitored else self._longest_s)
