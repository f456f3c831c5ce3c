"""Peers in processes of their own, which the kit for transports starts, kills and suspends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from parallax_core.base.processes import kill_process
from parallax_core.testing.peer import PeerPlan

HEARTBEATS = 3
"""The number of heartbeats that are waited for."""


class HeartbeatCounter:
    """Counts what a `Monitored` link reports."""

    def __init__(self) -> None:
        self._left = 0
        self._are_enough = asyncio.Event()

    def note(self) -> None:
        """Count a report."""
        self._left -= 1
        if self._left <= 0:
            self._are_enough.set()

    async def wait(self) -> None:
        """Wait for `HEARTBEATS` more reports."""
        self._left = HEARTBEATS
        self._are_enough.clear()
        await self._are_enough.wait()


@dataclass(frozen=True, slots=True)
class Child:
    """A peer in a process of its own."""

    process: asyncio.subprocess.Process
    address: str

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)


@asynccontextmanager
async def forked(factory: str, plan: PeerPlan, patience_s: float) -> AsyncIterator[Child]:
    """Start a node in a process of its own, whose transport ``factory`` makes, and end it in the end."""
    command = (sys.executable, "-m", "parallax_core.testing.peer", factory)
    process = await asyncio.create_subprocess_exec(
        *command,
        msgspec.json.encode(plan).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        assert process.stdout
        async with asyncio.timeout(patience_s):
            address = (await process.stdout.readline()).decode().strip()
        assert address, "the process of the peer ended before it listened; see what it wrote above"
        yield Child(process, address)
    finally:
        kill_process(process)
        await process.communicate()
