"""Notices on the event loop when the heartbeats of a peer stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parallax_core.cluster.failure_detector import FailureDetector
from parallax_core.contracts.transport import Monitored, MonitoredOnDemand

CHECK_S = 0.05
"""Seconds between checks of the detector."""


class PeerWatch:
    """Feeds a failure detector with the heartbeats of a link, and checks it every `CHECK_S`."""

    def __init__(self, link: Monitored, min_timeout_s: float, lose: Callable[[float], None]) -> None:
        """Begin; ``lose`` is called once with the seconds of silence when the peer is taken for lost."""
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._lose = lose
        self._detector = FailureDetector(self._loop.time(), link.timeout_s, min_timeout_s)
        self._timer = self._loop.call_later(CHECK_S, self._check)
        link.monitor(self._hear)

    def stop(self) -> None:
        """End it. Idempotent."""
        self._timer.cancel()
        if isinstance(self._link, MonitoredOnDemand):
            self._link.unmonitor()

    def _hear(self) -> None:
        self._detector.hear(self._loop.time())

    def _check(self) -> None:
        if self._detector.is_lost(self._loop.time()):
            self._lose(self._detector.silence_s)
        else:
            self._timer = self._loop.call_later(CHECK_S, self._check)
