"""Waits before each attempt to open again what was lost, for longer after each failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parallax_core.base.errors import EngineFailed

logger = logging.getLogger(__name__)

WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds to wait by consecutive failures; the last value repeats."""


class Backoff:
    """Counts the attempts since something last worked, and waits before the next one."""

    def __init__(self, tell: Callable[[str], None], most_failures: int | None = None) -> None:
        """``tell`` is called with the reason of each wait; after ``most_failures`` in a row `wait` gives up."""
        self._tell = tell
        self._most_failures = most_failures
        self._num_failures = 0

    def reset(self) -> None:
        """Note that it works again."""
        self._num_failures = 0

    async def wait(self, reason: str) -> None:
        """Wait before an attempt that ``reason`` makes necessary.

        Raises:
            EngineFailed: if there have been too many in a row.
        """
        if self._num_failures == self._most_failures:
            raise EngineFailed(f"given up after {self._num_failures} failures in a row: {reason}")
        wait_s = WAITS_S[min(self._num_failures, len(WAITS_S) - 1)]
        self._num_failures += 1
        if wait_s:
            logger.warning("trying again in %g s: %s", wait_s, reason)
            self._tell(f"{reason}; trying again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
        self._tell(reason)
