"""Chooses the number of steps in flight."""

from __future__ import annotations

from collections import deque
from statistics import median

MOST = 16
"""The most steps in flight: a new request waits behind all of them."""
WINDOW = 32
"""The number of recent steps whose times count."""


class PipelineDepth:
    """Keeps the slowest stage busy: allows as many steps as it computes in a round trip, however slow the links are.

    This is the bandwidth-delay product of the pipeline, estimated from the least round trip as BBR does for a network
    (ACM Queue 14(5), 2016). A single stage has one step at a time, and those it takes ahead.
    """

    def __init__(self, num_stages: int, steps_ahead: int = 0) -> None:
        """Start with the least depth; ``steps_ahead`` is `StageInfo.steps_ahead` of a single stage."""
        self._num_stages = num_stages
        self._round_trips: deque[float] = deque(maxlen=WINDOW)
        self._slowest: deque[float] = deque(maxlen=WINDOW)
        self.most = 1 + steps_ahead if num_stages == 1 else num_stages + 1  # one is on its way back
        """The number of steps that may be in flight now."""

    def note(self, round_trip_s: float, slowest_s: float) -> None:
        """Record a step: its round trip, and how long the slowest stage computed, in seconds."""
        if slowest_s > 0 and self._num_stages > 1:
            self._round_trips.append(round_trip_s)
            self._slowest.append(slowest_s)
            fitting = round(min(self._round_trips) / median(self._slowest))
            self.most = max(self._num_stages + 1, min(MOST, fitting))
