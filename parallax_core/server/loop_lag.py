"""How late the event loop is: for so long everybody waited for something that held it, or the interpreter lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_S = 0.05
"""How often it is looked at. A pause may show as so much shorter than it was."""


async def watch_lag(note: Callable[[float], None], period_s: float = PERIOD_S) -> None:
    """Tell ``note`` again and again how many seconds late the event loop is, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period_s
        await asyncio.sleep(period_s)
        note(max(0.0, loop.time() - due))
