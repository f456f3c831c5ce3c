"""Judges by the intervals between its heartbeats whether a peer is lost."""

from __future__ import annotations

MIN_TIMEOUT_S = 0.8
"""Seconds of silence that never count as a loss, however regular the heartbeats were."""
MARGIN = 3.0
"""The timeout is this many times the longest recent interval."""
WINDOW_S = 30.0
"""Seconds; an interval counts for one to two times as long."""
MIN_INTERVALS = 10
"""Intervals to measure before the timeout adapts to them."""
MOST_UNWATCHED_S = 0.15
"""The most seconds between two calls; a longer time is a pause of the observer, and does not count as silence."""


class FailureDetector:
    """Suspects a peer that is silent for longer than the intervals between its heartbeats explain.

    The timeout is `MARGIN` times the longest interval of the last `WINDOW_S`, between ``min_timeout_s`` and
    ``max_timeout_s``; it is ``max_timeout_s`` until `MIN_INTERVALS` are measured. If the observer was not called for
    more than `MOST_UNWATCHED_S`, it was paused itself, and this time does not count.

    This is an accrual failure detector (Hayashibara et al., "The phi accrual failure detector", SRDS 2004) with the
    measured intervals in place of a normal distribution, as in Satzger et al. ("A new adaptive accrual failure detector
    for dependable distributed systems", SAC 2007): the stalls of a busy machine are rare and long.
    """

    def __init__(self, now: float, max_timeout_s: float, min_timeout_s: float = MIN_TIMEOUT_S) -> None:
        """Watch a peer from ``now`` on, in seconds of any steady clock."""
        self._max_timeout_s = max_timeout_s
        self._min_timeout_s = min_timeout_s
        self._called = now
        self._time = 0.0
        """Seconds watched."""
        self._heard = 0.0
        """The same at the last heartbeat."""
        self._num_intervals = 0
        self._window_began = 0.0
        self._longest = self._longest_before = 0.0
        """The longest interval of this window, and of the one before."""

    @property
    def silence_s(self) -> float:
        """Seconds since the last heartbeat, without the observer's pauses, at the time of the last call."""
        return self._time - self._heard

    @property
    def timeout_s(self) -> float:
        """Seconds of silence after which the peer is lost."""
        if self._num_intervals < MIN_INTERVALS:
            return self._max_timeout_s
        adapted = MARGIN * max(self._longest, self._longest_before)
        return min(self._max_timeout_s, max(self._min_timeout_s, adapted))

    def hear(self, now: float) -> None:
        """Record a heartbeat, or anything else that the peer sent."""
        self._advance(now)
        if self._time - self._window_began >= WINDOW_S:
            self._longest_before, self._longest, self._window_began = self._longest, 0.0, self._time
        self._longest = max(self._longest, self.silence_s)
        self._heard = self._time
        self._num_intervals += 1

    def is_lost(self, now: float) -> bool:
        """Return whether the peer has been silent for longer than the timeout; call it every `MOST_UNWATCHED_S`."""
        self._advance(now)
        return self.silence_s > self.timeout_s

    def _advance(self, now: float) -> None:
        passed_s, self._called = now - self._called, now
        if passed_s <= MOST_UNWATCHED_S:  # else what came meanwhile may not be read yet
            self._time += passed_s
