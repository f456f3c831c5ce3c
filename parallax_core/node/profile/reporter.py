"""Sends the reports of a node to its head."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.node.profile.measuring import MeasuringProcess
from parallax_core.node.worker.thread import StageThread
from parallax_core.wire.profile import DeviceReport, NodeReport

logger = logging.getLogger(__name__)

IDLE_S = 0.5
"""Seconds without a stage before a node is measured: a head that waits for a node gives it one at once."""
REFRESH_S = 10.0
"""Seconds between two looks at what may change, such as the free memory."""
MEMORY_STEP, DISK_STEP = 0.02, 0.05
"""The change of the free memory, as a share of all memory, and that of the free disk that is worth a report."""

MakeReport = Callable[[], NodeReport | None]


class NodeReporter:
    """Reports what this node has to offer to each head that it joins, and again when that has changed.

    The device is measured while the node has no stage. Belongs to one event loop.
    """

    def __init__(self, make: MakeReport, measuring: MeasuringProcess | None = None) -> None:
        """Report what ``make`` returns, which is called on a thread of its own and may block; None: nothing is known.

        ``measuring`` has run before, if there is one.
        """
        self._make = make
        self._measuring = measuring
        self._thread: StageThread | None = None
        self._is_idle = True

    async def pause(self) -> None:
        """Measure no more until `resume`: a stage is about to be loaded."""
        self._is_idle = False
        if self._measuring is not None:
            await self._measuring.interrupt()

    def resume(self) -> None:
        """Measure if that is still to be done: there is no stage any more."""
        self._is_idle = True

    @asynccontextmanager
    async def reporting(self, channel: Channel) -> AsyncIterator[None]:
        """Report to the head at the other end of ``channel``, which this node has joined."""
        task = asyncio.create_task(self._run(channel))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, channel: Channel) -> None:
        try:
            with suppress(PeerLost):  # the session notices, too
                await self._report(channel)
        except Exception:
            logger.exception("this node cannot report what it has")

    async def _report(self, channel: Channel) -> None:
        sent: NodeReport | None = None
        wait_s = IDLE_S
        while True:
            await asyncio.sleep(wait_s)
            if self._is_idle and self._measuring is not None and not self._measuring.is_done:
                await self._measuring.run()
            report = await self._call()
            if report is not None and (sent is None or is_news(sent, report)):
                await channel.send(report)
                sent = report
            wait_s = REFRESH_S

    async def _call(self) -> NodeReport | None:
        self._thread = self._thread or StageThread("parallax-report")
        return await self._thread.call(self._make)


def is_news(old: NodeReport, new: NodeReport) -> bool:
    """Return whether a report differs from an earlier one by more than the usual ups and downs of free memory."""
    moved = abs(new.device.memory - old.device.memory) > MEMORY_STEP * max(new.device.total_memory, old.device.memory)
    filled = abs(new.disk_free - old.disk_free) > DISK_STEP * old.disk_free
    return moved or filled or _strip(old) != _strip(new)


def _strip(report: NodeReport) -> NodeReport:
    """Return a report without what `is_news` compares by its own rules."""
    device: DeviceReport = msgspec.structs.replace(report.device, memory=0)
    return msgspec.structs.replace(report, device=device, disk_free=0)
