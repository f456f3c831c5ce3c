"""Measures how late the event loop runs its tasks: it may be blocked by a call or the GIL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_S = 0.1
"""Seconds between measurements; a pause may appear shorter than it was by up to this time."""


async def watch_lag(note: Callable[[float], None], period_s: float = PERIOD_S) -> None:
    """Call ``note`` with the lag of the event loop in seconds, about every ``period_s`` seconds, until cancelled.

    It measures at multiples of the period, so that a process with other such timers wakes only once for all of them.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = round(loop.time() / period_s + 1) * period_s
        await asyncio.sleep(due - loop.time())
        note(max(0.0, loop.time() - due))
