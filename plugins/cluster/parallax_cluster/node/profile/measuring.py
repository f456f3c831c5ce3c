"""Measures the device of a backend in a process of its own, while the node goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from parallax_cluster.node.profile.device import MachineProfile
from parallax_core.api import ChildProcess
from parallax_core.api.node import worker_environment

logger = logging.getLogger(__name__)

IMPORTED = b"imported\n"
"""What the process prints once it has imported the framework of the backend."""
KILL_S = 10.0
"""Seconds to wait for its end once it is killed."""
MEASURE_S = 120.0
"""Seconds after which it counts as hung: importing a framework from a slow disk can take a minute."""


class MeasuringProcess:
    """A process that imports a backend's framework, measures the device and caches the figures.

    The first import of a framework may hold Python's interpreter lock for seconds, in which a node could send no
    heartbeats. After this process has imported it, its files are in the page cache, and the node imports it quickly.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Run ``command``, which prints `IMPORTED`, and later a `MachineProfile` as JSON, to standard output.

        Its standard input is closed when this process ends, however it does.
        """
        self.command = list(command)
        self._running: asyncio.Task[None] | None = None
        self._imported = asyncio.Event()
        self.is_done = False
        """Whether it has measured, or cannot."""
        self.machine: MachineProfile | None = None
        """What it has found; None: nothing yet."""

    async def run(self) -> None:
        """Start it, and wait until it has ended or is interrupted."""
        self._running = asyncio.create_task(self._run())
        try:
            await asyncio.wait([self._running])
        finally:
            self._imported.set()
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.is_done = self.is_done or not self._running.cancelled()
        self._running = None

    async def interrupt(self) -> None:
        """End it, if it runs, as soon as it has imported the framework."""
        if self._running is not None:
            await self._imported.wait()
            if self._running is not None:
                self._running.cancel()

    async def _run(self) -> None:
        try:
            process = await ChildProcess.start(self.command, worker_environment(), reads=True)
        except OSError as error:
            logger.warning("device cannot be measured: %s", error)
            return
        try:
            async with asyncio.timeout(MEASURE_S):
                if await process.stdout.readline() == IMPORTED:
                    self._imported.set()
                    self.machine = msgspec.json.decode(await process.stdout.read(), type=MachineProfile)
        except msgspec.MsgspecError:  # it failed, and has said why
            pass
        except TimeoutError:
            logger.warning("device is not measured: that took longer than %g s", MEASURE_S)
        finally:
            await process.kill(KILL_S)
