"""Ends the text before the first stop string, whatever the token boundaries."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on until a stop string appears; holds back text that may be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._num_exempt = 0
        self.matched: str | None = None
        """The stop string that ended the text; None: none so far."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.matched is not None

    def feed(self, text: str, *, is_exempt: bool = False) -> str:
        """Add text and return the part that certainly comes before any stop string.

        Exempt text is the beginning of an answer that must not end yet: a stop string must end after it to count.
        """
        if not self._stops:
            return text
        self._held += text
        if is_exempt:
            self._num_exempt = len(self._held)
        places = {stop: self._held.find(stop, self._find_start(stop)) for stop in self._stops}
        found = {stop: place for stop, place in places.items() if place >= 0}
        if found:
            self.matched = min(found, key=found.__getitem__)
            return self._release(found[self.matched], drop_rest=True)
        return self._release(len(self._held) - self._num_undecided())

    def finish(self) -> str:
        """Return the text still held back: no more follows to complete a stop string."""
        return self._release(len(self._held))

    def _find_start(self, stop: str) -> int:
        """Return the first position from which a stop string ends after the exempt text."""
        return max(0, self._num_exempt - len(stop) + 1)

    def _num_undecided(self) -> int:
        """Return the number of characters at the end that may be the start of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0

    def _release(self, size: int, *, drop_rest: bool = False) -> str:
        text, self._held = self._held[:size], "" if drop_rest else self._held[size:]
        self._num_exempt = max(0, self._num_exempt - size)
        return text
