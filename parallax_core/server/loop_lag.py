"""Measures how late the event loop runs its tasks: the time that a call or the interpreter lock blocks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_S = 0.05
"""Seconds between measurements; a pause may appear shorter than it was by up to this time."""


async def watch_lag(note: Callable[[float], None], period_s: float = PERIOD_S) -> None:
    """Call ``note`` with the lag of the event loop in seconds, every ``period_s`` seconds, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period_s
        await asyncio.sleep(period_s)
        note(max(0.0, loop.time() - due))
