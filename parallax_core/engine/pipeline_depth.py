"""How many steps to have in flight."""

from __future__ import annotations

from collections import deque
from statistics import median

MOST = 16
"""Steps in flight at the most: whoever comes meanwhile waits behind them."""
WINDOW = 32
"""How many steps back the round trip is looked at."""


class PipelineDepth:
    """As many steps as keep the slowest stage busy: those that fit into a round trip, however long the links are.

    The bandwidth-delay product of a pipeline, as congestion control that watches the least round trip does for a
    network (BBR, ACM Queue 14(5), 2016). A single stage has one step at a time.
    """

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._round_trips: deque[float] = deque(maxlen=WINDOW)
        self._slowest: deque[float] = deque(maxlen=WINDOW)
        self.most = 1 if num_stages == 1 else num_stages + 1  # one on its way back
        """How many steps may be in flight now."""

    def note(self, round_request_metrics_s: float, slowest_s: float) -> None:
        """Take in a step: how long it was under way, and how long the slowest stage computed."""
        if slowest_s > 0 and self._num_stages > 1:
            self._round_trips.append(round_request_metrics_s)
            self._slowest.append(slowest_s)
            fitting = round(min(self._round_trips) / median(self._slowest))
            self.most = max(self._num_stages + 1, min(MOST, fitting))
