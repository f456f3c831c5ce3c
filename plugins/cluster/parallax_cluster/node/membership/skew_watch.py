"""Detects announcements rejected because of clock skew."""

from __future__ import annotations

from parallax_cluster.membership.announcement import Announcement, Place

MOST_PLACES = 64


class SkewWatch:
    """Watches announcements that are not current. One may be left from a node that is gone; two have a live signer."""

    def __init__(self) -> None:
        self._sequences: dict[Place, int] = {}
        """Of announcements that were not current: the last."""
        self._is_shown = False

    def is_shown_by(self, announcement: Announcement, now: float) -> bool:
        """Return whether an announcement is the first to show that its signer has another time.

        Args:
            announcement: of somebody who knows the secret.
            now: seconds since 1970.
        """
        if self._is_shown or announcement.is_current(now):
            return False
        if len(self._sequences) >= MOST_PLACES:
            self._sequences.clear()
        before = self._sequences.setdefault(announcement.place, announcement.body.sequence)
        self._is_shown = announcement.body.sequence > before
        return self._is_shown
