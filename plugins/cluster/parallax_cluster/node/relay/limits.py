"""What a relay forwards at most: bytes per second for all, and bytes a day between two machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

DAY_S = 86_400.0
BURST_S = 0.05
"""Seconds of the allowed rate that are forwarded without a pause."""

MachinePair = tuple[str, str]
"""Two machines, in the order of their names."""


def make_pair(one: str, other: str) -> MachinePair:
    """Return two machines as a pair, whichever of them calls the other."""
    return (one, other) if one < other else (other, one)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayLimits:
    """The limits of a relay."""

    bytes_per_s: float = 0.0
    """Of all streams together; 0: no limit."""
    bytes_per_day: float = 0.0
    """Between two machines, in both directions together; 0: no limit."""


class Throttle:
    """Spaces out what is forwarded so that it stays within a rate. Streams get their turns in the order of asking."""

    def __init__(self, bytes_per_s: float) -> None:
        """Allow ``bytes_per_s``; 0: any rate. Belongs to one event loop."""
        self._bytes_per_s = bytes_per_s
        self._is_free_at = 0.0
        """When all that was allowed so far will have been forwarded at the rate."""

    async def wait(self, num_bytes: int) -> None:
        """Wait until ``num_bytes`` may be forwarded; if that is cancelled, others may forward as many."""
        if not self._bytes_per_s:
            return
        delay_s = self.reserve(num_bytes, asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(delay_s)  # also at zero, so that streams take turns
        except asyncio.CancelledError:
            self._is_free_at -= num_bytes / self._bytes_per_s
            raise

    def reserve(self, num_bytes: int, now: float) -> float:
        """Return the seconds after which ``num_bytes`` may be forwarded, behind all that was reserved before."""
        begin = max(self._is_free_at, now)
        self._is_free_at = begin + num_bytes / self._bytes_per_s
        return max(0.0, begin - now - BURST_S)


class Quotas:
    """Counts the bytes between machines, each pair for a day from its first byte on."""

    def __init__(self, bytes_per_day: float, clock: Callable[[], float]) -> None:
        """Allow each pair ``bytes_per_day``; 0: any number. ``clock`` returns seconds."""
        self._most = bytes_per_day
        self._clock = clock
        self._used: dict[MachinePair, tuple[float, int]] = {}
        """When the day of a pair began, and its bytes since; in the order of these beginnings."""

    def has_room(self, pair: MachinePair) -> bool:
        """Return whether more may be forwarded between two machines today."""
        self._forget()
        return not self._most or self._used.get(pair, (0.0, 0))[1] < self._most

    def add(self, pair: MachinePair, num_bytes: int) -> None:
        """Count bytes that were forwarded between two machines."""
        if self._most:
            begun, used = self._used.get(pair, (self._clock(), 0))
            self._used[pair] = begun, used + num_bytes

    def _forget(self) -> None:
        """Forget the pairs whose day is over."""
        while self._used:
            pair, (begun, _) = next(iter(self._used.items()))
            if self._clock() - begun < DAY_S:
                return
            del self._used[pair]
