"""Keeps announcements: the newest of each place while it is valid, up to a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from parallax_cluster.membership.announcement import Announcement, Place

MOST_ANNOUNCEMENTS = 10_000
"""The most announcements that are kept."""
MOST_OF_ONE = 1024
"""The same for one machine that brings them."""
FORGET_S = 1.0


@dataclass(frozen=True, slots=True)
class KeptAnnouncement:
    """An announcement, and the machine that has brought it."""

    announcement: Announcement
    bringer: str


class Announcements:
    """Stores the announcements of any number of clusters; when full, it refuses new ones and drops none."""

    def __init__(self, most: int = MOST_ANNOUNCEMENTS, most_of_one: int = MOST_OF_ONE) -> None:
        """Keep at most ``most`` announcements, and ``most_of_one`` of a machine."""
        self._most = most
        self._most_of_one = most_of_one
        self._topics: dict[bytes, dict[Place, KeptAnnouncement]] = {}
        self._counts: Counter[str] = Counter()
        """By machine: how many of its announcements are kept."""
        self._forgot_at = -inf

    def __len__(self) -> int:
        return self._counts.total()

    def note(self, announcement: Announcement, bringer: str, now: float) -> bool:
        """Keep an announcement that ``bringer`` brings; return whether it is news.

        It is none if it has expired, if the same or a later one is known, or if there are too many. One that withdraws
        another is kept as well, so that the other does not come back.

        Args:
            announcement: with a valid signature.
            bringer: the name of a machine.
            now: seconds since 1970.
        """
        self._forget(now)
        if not announcement.is_current(now):
            return False
        place, topic = announcement.place, self._topics.get(announcement.body.topic, {})
        before = topic.get(place)
        if before is not None and before.announcement.body.sequence >= announcement.body.sequence:
            return False
        if before is None:
            if len(self) >= self._most or self._counts[bringer] >= self._most_of_one:
                return False
            self._counts[bringer] += 1
        self._topics.setdefault(announcement.body.topic, topic)[place] = KeptAnnouncement(
            announcement, bringer if before is None else before.bringer
        )
        return True

    def list_current(self, topic: bytes, now: float) -> Sequence[Announcement]:
        """Return the announcements of a topic that have not expired and are not withdrawn, by signer and number."""
        found = [kept.announcement for kept in self._topics.get(topic, {}).values()]
        return sorted(
            (each for each in found if each.body.content and each.is_current(now)), key=lambda each: each.place
        )

    def _forget(self, now: float) -> None:
        """Forget what has expired, at most once a second."""
        if self._forgot_at <= now < self._forgot_at + FORGET_S:
            return
        self._forgot_at = now
        for topic, kept in list(self._topics.items()):
            for place, each in list(kept.items()):
                if not each.announcement.is_current(now):
                    del kept[place]
                    self._counts[each.bringer] -= 1
            if not kept:
                del self._topics[topic]
        self._counts = +self._counts
